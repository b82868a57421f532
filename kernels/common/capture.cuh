// A CUDA graph of what is enqueued.
#pragma once

#include <cuda_runtime.h>

#include <functional>

namespace hypic::cuda {

// What `enqueue` puts on the stream, recorded and not run; the caller destroys it. Where enqueue throws, the stream
// is usable again.
cudaGraphExec_t capture(cudaStream_t stream, const std::function<void()>& enqueue);

}  // namespace hypic::cuda
