// What may differ between a backend and the truth: from dtypes, sizes and norms alone, never from what passes.
#pragma once

#include "core/backend.h"
#include "models/spec.h"

namespace hypic {

// What a vector of outputs or a state may differ by, as its RMS error ratio ‖got − want‖ / ‖want‖ (targets in
// docs/conformance.md):
//   float64   1e-12
//   float32   1e-5
//             both 50 times that for a slow head under one input over and over, where every
//             rounding falls on the same side
//   bfloat16, float16 operands   6e-3; a kernel that declares its roundings must also stay within
//             1.5 times the error of float64 with those roundings, `faithful` (0: not declared)
double tolerance(DType compute, bool repeated = false, double faithful = 0);

// The relative size of one rounding (2⁻²⁴ in float32), and the smallest number that keeps it: below, results
// may be flushed to zero.
double unit_roundoff(DType dtype);
double smallest_normal(DType dtype);

// Of the residual stream after a layer, relative: dot products of K terms round by about √K units where they are
// summed in the operands' dtype, results of narrow operands once; each layer adds its own; 8 for what lies
// between.
double layer_tolerance(const Backend& backend, const ModelSpec& spec, int layer);

// Of logits of rms `rms`, relative above an rms of 1: to another implementation in float32 1e-4; with narrow
// operands what the residual stream may differ by after the last layer.
double logit_tolerance(const Backend& backend, const ModelSpec& spec, double rms);

// Of logits in two batches or chunkings: a batch-invariant backend promises the same bits.
double batch_tolerance(const Backend& backend, const ModelSpec& spec, double rms);

// measured / bound, so that 1 is the limit; a bound of 0 asks for equality.
double excess(double measured, double bound);

}  // namespace hypic
