#include "kernels/linear_attention/plain.cuh"

namespace hypic::cuda {

template void plain_cell<Decay::elementwise, Update::add>(const LinearAttentionArgs&, const TableUpload&, cudaStream_t);

}  // namespace hypic::cuda
