// Operations recorded as CUDA graphs, by key.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <functional>
#include <map>
#include <string>

namespace hypic::cuda {

class Records {
 public:
  using Launches = std::map<std::string, int64_t>;

  Records() = default;
  Records(const Records&) = delete;
  Records& operator=(const Records&) = delete;
  ~Records();

  // The first time a key is seen `enqueue` runs as it is, for what is set up once; the second time it is recorded.
  // `launches` counts what runs, replayed or not.
  void replay(const std::string& key, const std::function<void()>& enqueue, cudaStream_t stream, Launches& launches);

 private:
  struct Record {
    cudaGraphExec_t graph = nullptr;
    Launches launches;  // of one run
  };
  void forget();
  std::map<std::string, Record> records_;
};

}  // namespace hypic::cuda
