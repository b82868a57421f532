#include "kernels/linear_attention/low_rank_launch.cuh"

namespace hypic::cuda {

template void low_rank_cell<64>(LowRankArgs, const TableUpload&, int, cudaStream_t);

}  // namespace hypic::cuda
