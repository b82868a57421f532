#include "serving/rank_threads.h"

#include <algorithm>
#include <string>

#include "core/check.h"

namespace hypic {

RankThreads::RankThreads(std::vector<Backend*> ranks) : ranks_(std::move(ranks)), errors_(ranks_.size()) {
  for (size_t rank = 1; rank < ranks_.size(); ++rank)
    threads_.emplace_back([this, rank] { serve(static_cast<int>(rank)); });
}

RankThreads::~RankThreads() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  woken_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void RankThreads::serve(int rank) {
  std::unique_lock lock(mutex_);
  for (uint64_t done = 0;; ++done) {
    woken_.wait(lock, [&] { return stopping_ || runs_ > done; });
    if (stopping_) return;
    lock.unlock();
    work(rank);
    lock.lock();
    if (--running_ == 0) ended_.notify_all();
  }
}

void RankThreads::work(int rank) {
  try {
    if (rank > 0) ranks_[rank]->enter_thread();
    (*work_)(rank);
  } catch (...) {
    errors_[rank] = std::current_exception();
    ranks_[rank]->leave_group();
  }
}

std::vector<std::exception_ptr> RankThreads::run(const std::function<void(int)>& work) {
  {
    const std::lock_guard lock(mutex_);
    HYPIC_CHECK(work_ == nullptr, "a run of ranks within another");
    work_ = &work;
    errors_.assign(ranks_.size(), nullptr);
    running_ = static_cast<int>(threads_.size());
    ++runs_;
  }
  woken_.notify_all();
  this->work(0);
  std::unique_lock lock(mutex_);
  ended_.wait(lock, [&] { return running_ == 0; });
  work_ = nullptr;
  if (std::any_of(errors_.begin(), errors_.end(), [](const auto& error) { return error != nullptr; })) {
    for (Backend* rank : ranks_) try {
        rank->rejoin_group();
      } catch (const std::exception&) {  // from here on every sum says that a rank is lost
      }
    ranks_[0]->enter_thread();
  }
  return std::move(errors_);
}

void Agreement::end() {
  const std::lock_guard lock(mutex_);
  answers_.clear();
  asked_.assign(asked_.size(), 0);
}

std::exception_ptr cause(const std::vector<std::exception_ptr>& errors) {
  std::exception_ptr lost;
  for (const std::exception_ptr& error : errors) {
    if (!error) continue;
    try {
      std::rethrow_exception(error);
    } catch (const RankLost&) {
      if (!lost) lost = error;
    } catch (...) {
      return error;
    }
  }
  return lost;
}

bool all_alike(const std::vector<std::exception_ptr>& errors) {
  std::string first;
  for (size_t rank = 0; rank < errors.size(); ++rank) {
    if (!errors[rank]) return false;
    try {
      std::rethrow_exception(errors[rank]);
    } catch (const RankLost&) {
      return false;
    } catch (const std::exception& error) {
      if (rank == 0) first = error.what();
      if (first != error.what()) return false;
    } catch (...) {
      return false;
    }
  }
  return true;
}

}  // namespace hypic
