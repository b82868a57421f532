// What stands in where CUDA was not found at build time.
#ifndef HYPIC_HAVE_CUDA

#include "core/check.h"
#include "kernels/cuda_backend.h"

namespace hypic::cuda {

std::unique_ptr<Backend> make_cuda_backend(DType) {
  fail("built without CUDA: install the CUDA toolkit and build again for backends cuda and cuda32");
}

}  // namespace hypic::cuda

#endif
