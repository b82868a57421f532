#include "serving/combine_worker.h"

#include <chrono>
#include <utility>

#include "core/check.h"

namespace hypic {

CombineWorker::CombineWorker(Engine& engine, const Model& model, Metrics& metrics, const SchedulerOptions& scheduling,
                             const InboxOptions& options)
    : inbox_(model, scheduling.mode, options), receiving_(engine, inbox_), scheduler_(engine, metrics, scheduling) {
  inbox_.on_change([this] {
    const std::scoped_lock lock(mutex_);
    moved_ = true;
    changed_.notify_all();
  });
  thread_ = std::thread([this] { wait(); });
}

CombineWorker::~CombineWorker() {
  {
    const std::scoped_lock lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

CombineWorker::Opened CombineWorker::submit(Request request, const std::vector<Remote>& remote, Listener listener) {
  Opened opened;
  Job job;
  for (const Remote& one : remote) {
    require(one.segment < request.segments.size(), "segment ", one.segment, " of ", request.segments.size(),
            " is not there to be sent");
    opened.generations.push_back(inbox_.open(one.transfer, request.segments[one.segment]));
    if (opened.generations.back() != 0) job.transfers.push_back(one.transfer);
  }
  job.request = std::move(request);
  job.listener = std::move(listener);
  const std::scoped_lock lock(mutex_);
  opened.id = ++last_id_;
  jobs_.emplace(opened.id, std::move(job));
  moved_ = true;
  changed_.notify_all();
  return opened;
}

void CombineWorker::cancel(uint64_t id) {
  const std::scoped_lock lock(mutex_);
  const auto found = jobs_.find(id);
  if (found == jobs_.end()) return;
  // First of all, so that no forward that is given up for its transfers is planned with it again.
  if (found->second.scheduled != 0) scheduler_.cancel(found->second.scheduled);
  forget(found);
}

void CombineWorker::wait() {
  std::unique_lock lock(mutex_);
  for (;;) {
    // A while beyond the deadline itself, so that it is over.
    constexpr std::chrono::milliseconds kGrain{1};
    const auto deadline = inbox_.next_deadline();
    const auto something = [&] { return stopping_ || moved_; };
    if (deadline)
      changed_.wait_until(lock, *deadline + kGrain, something);
    else
      changed_.wait(lock, something);
    if (stopping_) return;
    moved_ = false;
    for (auto job = jobs_.begin(); job != jobs_.end();) {
      const auto one = job++;  // start() may end it
      if (one->second.scheduled == 0 && inbox_.begun(one->second.transfers)) start(one);
    }
  }
}

// With the lock: its notices must not come before it is known under which number it is scheduled.
void CombineWorker::start(Jobs::iterator job) {
  Job& one = job->second;
  const auto notice = [this, id = job->first, listener = one.listener](const Notice& said) {
    if (said.last) end(id);
    listener(said);
  };
  one.scheduled = scheduler_.submit(std::move(one.request), notice);
  if (one.scheduled != 0) return;
  const Listener listener = std::move(one.listener);
  forget(job);
  listener({.kind = Notice::Kind::failed, .last = true, .status = 429, .error = "too many requests wait"});
}

void CombineWorker::end(uint64_t id) {
  const std::scoped_lock lock(mutex_);
  if (const auto found = jobs_.find(id); found != jobs_.end()) forget(found);
}

// With the lock.
void CombineWorker::forget(Jobs::iterator job) {
  for (const uint64_t transfer : job->second.transfers) inbox_.close(transfer);
  jobs_.erase(job);
}

}  // namespace hypic
