#include "kernels/linear_attention/chunked_launch.cuh"

namespace hypic::cuda {

template void chunked_cell<false, 64, true>(ChunkedArgs, int, const TableUpload&, int, cudaStream_t);

}  // namespace hypic::cuda
