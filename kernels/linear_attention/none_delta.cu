#include "kernels/linear_attention/plain.cuh"

namespace hypic::cuda {

template void plain_cell<Decay::none, Update::delta>(const LinearAttentionArgs&, const TableUpload&, cudaStream_t);

}  // namespace hypic::cuda
