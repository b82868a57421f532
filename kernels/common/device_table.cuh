// The chain table in device memory: uploaded once a forward, read by every operation.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <vector>

#include "core/chain.h"

namespace hypic::cuda {

// A step that leaves an operator.
struct OpStep {
  int32_t item;
  int32_t op;
};

struct DeviceTable {  // device pointers
  const Chain* chains = nullptr;
  const ChainItem* items = nullptr;
  const ResidueRef* residues = nullptr;
  const int32_t* pages = nullptr;
  const int32_t* positions = nullptr;
  const int32_t* chain_of = nullptr;
  const OpStep* op_steps = nullptr;
  int32_t page_size = 0;
};

// Chains [first, last) and op steps [op_first, op_last) of one level; levels run one after another, for jumps
// read what lower levels left.
struct Level {
  int32_t first, last, op_first, op_last;
};

class TableUpload {
 public:
  ~TableUpload();
  void upload(const ChainTable& table, cudaStream_t stream);
  const DeviceTable& device() const { return device_; }
  const std::vector<Level>& levels() const { return levels_; }
  int64_t rows() const { return rows_; }
  int32_t page_size() const { return device_.page_size; }

 private:
  DeviceTable device_;
  std::vector<Level> levels_;
  int64_t rows_ = 0;
  void* memory_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace hypic::cuda
