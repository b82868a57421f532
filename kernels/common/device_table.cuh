// The chain table in device memory: uploaded once a forward, read by every operation.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <string>
#include <vector>

#include "core/chain.h"
#include "kernels/common/chain_spans.h"
#include "kernels/common/staging.cuh"

namespace hypic::cuda {

// A step that leaves an operator.
struct OpStep {
  int32_t item;
  int32_t op;
};

// At most so many rows of a chain's last step go along with the jumps before it; more are quicker on their own.
inline constexpr int32_t kLastJumpRows = 32;

// Rows [begin, end) of one step, at most kChunkRows.
inline constexpr int32_t kChunkRows = 64;
struct RowChunk {
  int32_t begin, end;
};

struct DeviceTable {  // device pointers
  const Chain* chains = nullptr;
  const ChainItem* items = nullptr;
  const ResidueRef* residues = nullptr;
  const int32_t* pages = nullptr;
  const int32_t* tokens = nullptr;
  const int32_t* positions = nullptr;
  const int32_t* logit_rows = nullptr;
  const int32_t* chain_of = nullptr;
  const int32_t* item_of = nullptr;   // [R] the step of each row
  const OpStep* op_steps = nullptr;   // of each level, in the order of its chains
  const int32_t* order = nullptr;     // chains of each level by falling number of rows, its single rows last
  const ChainSpan* spans = nullptr;   // of the levels, stage by stage
  const RowChunk* chunks = nullptr;   // every step of every chain that is no single row, cut from its begin on
  int32_t page_size = 0;
};

// Chains [first, last) and op steps [op_first, op_last) of one level; levels run one after another, for jumps
// read what lower levels left. Single rows: chains that are one step of one row, kept, without operator and save.
struct Level {
  int32_t first, last, op_first, op_last;
  int32_t single_first;  // order[single_first, last) are single rows
  std::vector<SpanStage> stages;  // of the chains that are no single rows
};

class TableUpload {
 public:
  ~TableUpload();
  void upload(const ChainTable& table, Staging& staging, cudaStream_t stream);
  const DeviceTable& device() const { return device_; }
  const std::vector<Level>& levels() const { return levels_; }
  const std::vector<Chain>& chains() const { return chains_; }
  int32_t item_count() const { return item_count_; }
  int32_t max_position() const { return max_position_; }
  int32_t max_keys() const { return max_keys_; }  // the most keys, residues included, that a row sees
  int64_t rows() const { return rows_; }
  int32_t chunk_count() const { return chunk_count_; }
  // Equal for two tables whose arrays, but for the pages, have the same sizes and lie in the same memory: kernels
  // recorded for one may be replayed for the other.
  const std::string& shape() const { return shape_; }
  int32_t page_size() const { return device_.page_size; }

 private:
  DeviceTable device_;
  std::vector<Level> levels_;
  std::vector<Chain> chains_;
  std::string shape_;
  int32_t item_count_ = 0;
  int32_t max_position_ = 0;
  int32_t max_keys_ = 0;
  int64_t rows_ = 0;
  int32_t chunk_count_ = 0;
  void* memory_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace hypic::cuda
