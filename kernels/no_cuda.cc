// What stands in where CUDA was not found at build time.
#ifndef HYPIC_HAVE_CUDA

#include "core/check.h"
#include "kernels/cuda_backend.h"
#include "kernels/nccl_links.h"
#include "kernels/replay.h"

namespace hypic::cuda {

std::unique_ptr<Backend> make_cuda_backend(const CudaOptions&) {
  fail("built without CUDA: install the CUDA toolkit and build again for backends cuda and cuda32");
}

std::vector<std::unique_ptr<Backend>> make_cuda_ranks(const CudaOptions& options, std::span<const int>) {
  make_cuda_backend(options);
  return {};
}

std::unique_ptr<Links> make_nccl_links(int) { fail("built without CUDA: no links of NCCL"); }

void* stream_of(const Backend&) { return nullptr; }

std::function<std::vector<double>(int)> record(void*, const std::function<void()>&,
                                               const ReplayOptions&) {
  fail("built without CUDA: no graphs");
}

}  // namespace hypic::cuda

#endif
