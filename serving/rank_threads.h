// A thread for each rank of a tensor-parallel group but the first, which runs on the caller's.
#pragma once

#include <any>
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

// What the ranks must take alike although each asks at its own time, such as whether something has come from elsewhere.
// They do the same things, so all ask the same questions in the same order: whoever comes first to one answers it for
// all, and those that come meanwhile wait.
class Agreement {
 public:
  explicit Agreement(size_t ranks) : asked_(ranks) {}

  // Where an answer throws, it is that rank's error, and the next rank answers.
  template <class Answer>
  auto operator()(int rank, const Answer& answer) {
    const std::lock_guard lock(mutex_);
    const size_t question = asked_[rank]++;
    if (question == answers_.size()) answers_.emplace_back(answer());
    return std::any_cast<decltype(answer())>(answers_.at(question));
  }
  // Nobody asks any more, whatever befell one of them; what comes next begins anew.
  void end();

 private:
  std::mutex mutex_;
  std::vector<size_t> asked_;  // by rank: questions so far
  std::vector<std::any> answers_;
};

// The error of a run that is the one to tell: the first that is not that another rank is lost. Null: there is none.
std::exception_ptr cause(const std::vector<std::exception_ptr>& errors);

// Whether all ranks threw, and the same: then they are still alike.
bool all_alike(const std::vector<std::exception_ptr>& errors);

}  // namespace hypic
