#include "kernels/common/capture.cuh"

#include "kernels/common/cuda.cuh"

namespace hypic::cuda {

cudaGraphExec_t capture(cudaStream_t stream, const std::function<void()>& enqueue) {
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
  cudaGraph_t graph = nullptr;
  try {
    enqueue();
  } catch (...) {
    cudaStreamEndCapture(stream, &graph);
    if (graph) cudaGraphDestroy(graph);
    cudaGetLastError();
    throw;
  }
  cudaError_t error = cudaStreamEndCapture(stream, &graph);
  cudaGraphExec_t exec = nullptr;
  if (error == cudaSuccess) error = cudaGraphInstantiate(&exec, graph, 0);
  if (graph) cudaGraphDestroy(graph);
  check(error, "graph");
  return exec;
}

}  // namespace hypic::cuda
