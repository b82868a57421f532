#include "kernels/linear_attention/plain.cuh"

namespace hypic::cuda {

template void plain_cell<Decay::scalar, Update::delta_before>(const LinearAttentionArgs&, const TableUpload&, cudaStream_t);

}  // namespace hypic::cuda
