// How the fast kernels of `experts` cut their work for a GPU: tile, blocks, memory. Pure functions of the sizes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>

namespace hypic::cuda {

// A tile of a product: `rows` pairs of (row, choice) of one expert by `columns` rows of its matrix, shared by
// warps_m × warps_n warps. It walks the inner axis in steps, `stages` of which lie in shared memory.
struct ExpertsTile {
  int rows, columns;
  int warps_m, warps_n;
  int stages;
  int blocks_per_sm;

  constexpr int threads() const { return 32 * warps_m * warps_n; }
  constexpr size_t stage_bytes() const;
  constexpr int ring() const { return stages + 1; }  // of what is kept of a tile while its steps are under way
  constexpr size_t shared_bytes() const;
};

inline constexpr int kExpertsSortThreads = 1024;
inline constexpr int kExpertsStep = 64;  // elements of the inner axis

constexpr size_t ExpertsTile::stage_bytes() const {
  return static_cast<size_t>(rows + columns) * kExpertsStep * 2;
}
constexpr size_t ExpertsTile::shared_bytes() const {
  return stages * stage_bytes() + ring() * (static_cast<size_t>(rows) + 2) * 4;
}

// Few rows an expert, where reading the weights is what costs: many blocks, much under way.
inline constexpr ExpertsTile kExpertsTiles[] = {
    {16, 64, 1, 4, 7, 3},
    {32, 128, 1, 4, 5, 2},
    {64, 128, 1, 4, 4, 2},
};
inline constexpr int kExpertsTileCount = static_cast<int>(std::size(kExpertsTiles));

// Many rows an expert, where the tensor cores and the second-level cache are: a cluster of two blocks has `columns`
// rows of a matrix in common, which each block fetches half of for both, and `rows` pairs, half of them a block.
struct ExpertsWideTile {
  static constexpr int kRows = 288, kColumns = 256;
  static constexpr int kBlockRows = kRows / 2;
  static constexpr int kStep = 64;      // elements of the inner axis
  static constexpr int kBoxRows = 16;   // of the pairs, in one copy
  static constexpr int kStageBytes = (kColumns + kBlockRows) * kStep * 2;
  static constexpr int kStages = 4;
  // Rows of a result on their way out: as many at a time, of up to 32 columns a warp.
  static constexpr int kOutRows = 32, kOutWarpBytes = kOutRows * 32 * 2, kOutBytes = 8 * kOutWarpBytes;
  static constexpr int kSharedBytes = kStages * (kStageBytes + 16) + kOutBytes;  // two barriers a stage
};

inline constexpr int kMaxExperts = 1024;
inline constexpr int kMaxExpertChoices = 32;
// Of the memory for inner activations and outputs of the pairs; more rows go in passes.
inline constexpr int64_t kExpertsScratch = int64_t{1} << 30;

struct ExpertsPlan {
  bool wide;          // with ExpertsWideTile
  int tile;           // if not: in kExpertsTiles
  int tile_rows;      // of it, pairs
  int64_t pass_rows;  // at a time; only the last pass has fewer
  int sort_pairs;     // in each block of the sort
  int max_tiles;      // along the pairs, whatever the routing
  int up_column_tiles, down_column_tiles;
  int up_blocks, down_blocks;
  // Offsets in the scratch, bytes.
  size_t counts;      // [blocks of the sort, E] int32: a block's pairs of an expert
  size_t tiles;       // [max_tiles] four int32: expert, first place, places, none
  size_t tile_count;  // [1] int32: tiles
  size_t pairs;       // [P] int32: the pair at a place in the order of experts
  size_t inner;       // [P, I] bf16, in the order of experts
  size_t outputs;     // [P, N] bf16, in the order of pairs
  size_t bytes;
};

// R ≥ 1 rows of k choices among E experts [N → I → N].
ExpertsPlan plan_experts(int sms, int64_t R, int k, int E, int N, int I, bool gated);

}  // namespace hypic::cuda
