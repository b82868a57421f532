// What stands in where CUDA was not found at build time.
#ifndef HYPIC_HAVE_CUDA

#include "core/check.h"
#include "kernels/cuda_backend.h"
#include "kernels/replay.h"

namespace hypic::cuda {

std::unique_ptr<Backend> make_cuda_backend(const CudaOptions&) {
  fail("built without CUDA: install the CUDA toolkit and build again for backends cuda and cuda32");
}

GroupId new_group_id() { fail("built without CUDA: no groups of ranks"); }

void* stream_of(const Backend&) { return nullptr; }

std::function<std::vector<double>(int)> record(void*, const std::function<void()>&,
                                               const ReplayOptions&) {
  fail("built without CUDA: no graphs");
}

}  // namespace hypic::cuda

#endif
