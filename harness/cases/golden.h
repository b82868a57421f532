// Golden workloads for kernels that hypic cannot call, such as Triton's: inputs and the answers in float64, in a folder
// of FlashInfer-Bench's layout, and the check of what a kernel made of them.
//
//   definitions/linear_attention/NAME.json   axes, inputs, outputs, a reference in Python
//   workloads/linear_attention/NAME.jsonl    a workload a line
//   blob/workloads/NAME/UUID.safetensors     its inputs, as the definition has them
//   blob/expected/NAME/UUID.safetensors      o, S; for both NAME.moved, NAME.floor; repeated: see golden.cc
//   outputs/NAME/UUID.safetensors            what is checked: o, S, written by the kernel's author
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "harness/cases/compare.h"

namespace hypic::golden {

// Families that can be exported, in order.
std::vector<std::string> families();

// Writes the folder. `families`: of these alone, empty: all. Error: an unknown family, one that is not exported, or a
// folder that cannot be written.
void write(const std::string& folder, const std::vector<std::string>& families);

struct Workload {
  std::string definition, uuid;
};

// Workloads of all definitions in a folder, in order of names. Error: no such folder, or a line that is none.
std::vector<Workload> read_workloads(const std::string& folder);
// One line of workloads/*/NAME.jsonl. Error, beginning with `where`: malformed, of another definition than `name`, or a
// uuid that is no plain file name.
Workload parse_workload(std::string_view line, const std::string& name, const std::string& where);

struct Verdict {
  bool there = false;            // an output was written
  conformance::Comparison o, S;  // where one was
};

// An output against the answer. compute: what the kernel computes in, as in core/dtype.h ("bf16"); empty: the coarser
// dtype of its outputs. Error: an output that is no safetensors file, lacks a tensor, or has another shape or dtype.
Verdict check(const std::string& folder, const std::string& outputs, const Workload& workload,
              const std::string& compute);

}  // namespace hypic::golden
