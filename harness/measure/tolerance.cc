#include "harness/measure/tolerance.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace hypic {

double tolerance(DType compute, bool repeated, double faithful) {
  switch (compute) {
    case DType::f64: return repeated ? 5e-11 : 1e-12;
    case DType::f32: return repeated ? 5e-4 : 1e-5;
    default: return faithful > 0 ? std::min(6e-3, 1.5 * faithful) : 6e-3;
  }
}

double unit_roundoff(DType dtype) {
  switch (dtype) {
    case DType::f64: return 0x1p-53;
    case DType::f32: return 0x1p-24;
    case DType::f16: return 0x1p-11;
    default: return 0x1p-8;
  }
}

double smallest_normal(DType dtype) {
  switch (dtype) {
    case DType::f64: return 0x1p-1022;
    case DType::f16: return 0x1p-14;
    default: return 0x1p-126;
  }
}

double layer_tolerance(const Backend& backend, const ModelSpec& spec, int layer) {
  const DType compute = backend.compute_dtype();
  const double terms = std::max({spec.hidden, spec.ffn.inner, spec.moe.inner, spec.linear.conv_channels()});
  // Products of narrow operands are summed in float32: what rounds is each result.
  const bool wide = compute == DType::f32 || compute == DType::f64;
  return 8 * unit_roundoff(compute) * (wide ? std::sqrt(terms) : 1) * (layer + 1);
}

double logit_tolerance(const Backend& backend, const ModelSpec& spec, double rms) {
  const DType compute = backend.compute_dtype();
  const bool wide = compute == DType::f32 || compute == DType::f64;
  return (wide ? 1e-4 : layer_tolerance(backend, spec, spec.layer_count() - 1)) * std::max(1.0, rms);
}

double batch_tolerance(const Backend& backend, const ModelSpec& spec, double rms) {
  return backend.batch_invariant() ? 0 : logit_tolerance(backend, spec, rms);
}

double excess(double measured, double bound) {
  if (bound > 0) return measured / bound;
  return measured == 0 ? 0 : std::numeric_limits<double>::infinity();
}

}  // namespace hypic
