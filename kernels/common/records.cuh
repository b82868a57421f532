// Operations recorded as CUDA graphs, by key.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "kernels/common/arena.h"

namespace hypic::cuda {

class Records {
 public:
  using Launches = std::map<std::string, int64_t>;

  Records();
  Records(const Records&) = delete;
  Records& operator=(const Records&) = delete;
  ~Records();

  // The first time a key is seen `enqueue` runs as it is, for what is set up once; the second time it is recorded.
  // While it is, recording_arena is one that all records share, for they run one after another: nodes of a graph that
  // allocate would keep the kernels before and after them apart.
  // `launches` counts what runs, replayed or not.
  void replay(const std::string& key, const std::function<void()>& enqueue, cudaStream_t stream, Launches& launches);

  // Drops all records; none may be running.
  void forget();

  // False, and nothing done, where the memory was not taken by what was recorded.
  bool give_back(void* memory) noexcept { return arena_.give_back(memory); }

 private:
  struct Record {
    cudaGraphExec_t graph = nullptr;
    Launches launches;  // of one run
  };
  Arena arena_;
  std::map<std::string, Record> records_;
};

}  // namespace hypic::cuda
