// A thread for each rank of a tensor-parallel group but the first, which runs on the caller's.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "core/backend.h"

namespace hypic {

class RankThreads {
 public:
  explicit RankThreads(std::vector<Backend*> ranks);
  RankThreads(const RankThreads&) = delete;
  RankThreads& operator=(const RankThreads&) = delete;
  ~RankThreads();

  // work(rank) on every rank at once, until all have ended; what each threw. One that throws leaves the group, so that
  // none waits for it; all have rejoined in the end. Not for several threads at once, nor from within work.
  std::vector<std::exception_ptr> run(const std::function<void(int rank)>& work);

 private:
  void serve(int rank);
  void work(int rank);

  const std::vector<Backend*> ranks_;
  std::mutex mutex_;
  std::condition_variable woken_, ended_;
  const std::function<void(int)>* work_ = nullptr;
  std::vector<std::exception_ptr> errors_;
  uint64_t runs_ = 0;
  int running_ = 0;  // of the others
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

// The error of a run that is the one to tell: the first that is not that another rank is lost. Null: there is none.
std::exception_ptr cause(const std::vector<std::exception_ptr>& errors);

// Whether all ranks threw, and the same: then they are still alike.
bool all_alike(const std::vector<std::exception_ptr>& errors);

}  // namespace hypic
