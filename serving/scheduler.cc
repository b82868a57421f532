#include "serving/scheduler.h"

#include <algorithm>
#include <utility>

#include "core/check.h"

namespace hypic {
namespace {

double since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

Scheduler::Scheduler(Engine& engine, Metrics& metrics, const SchedulerOptions& options)
    : engine_(engine), metrics_(metrics), options_(options), thread_([this] { run(); }) {}

Scheduler::~Scheduler() {
  {
    const std::scoped_lock lock(mutex_);
    stopping_ = true;
    commands_.close();
  }
  woken_.notify_all();
  thread_.join();
  engine_.on_read({});
}

uint64_t Scheduler::submit(Request request, Listener listener) {
  Job job;
  for (const Tokens& segment : request.segments) job.prompt += static_cast<int64_t>(segment.size());
  job.request = std::move(request);
  job.listener = std::move(listener);
  job.arrived = Clock::now();
  const std::scoped_lock lock(mutex_);
  if (draining_ || stopping_ || waiting_ >= options_.max_waiting) return 0;
  ++waiting_;
  job.id = ++last_id_;
  arrived_.push_back(std::move(job));
  woken_.notify_all();
  return last_id_;
}

void Scheduler::cancel(uint64_t id) {
  const std::scoped_lock lock(mutex_);
  cancelled_.push_back(id);
  woken_.notify_all();
}

void Scheduler::flush() {
  commands_.run([this] { engine_.flush(); });
}

void Scheduler::drain() {
  const std::scoped_lock lock(mutex_);
  draining_ = true;
}

void Scheduler::wait_until_warm() {
  std::unique_lock lock(mutex_);
  said_.wait(lock, [&] { return warm_ || !warm_error_.empty(); });
  require(warm_, "the first request failed: ", warm_error_);
}

Load Scheduler::load() const {
  const std::scoped_lock lock(mutex_);
  Load load = load_;
  load.waiting = waiting_;
  if (warm_)
    load.why_not_ready.clear();
  else if (!warm_error_.empty())
    load.why_not_ready = "the first request failed: " + warm_error_;
  load.draining = draining_;
  return load;
}

void Scheduler::run() {
  engine_.enter_thread();
  engine_.on_read([this] {
    const std::scoped_lock lock(mutex_);
    read_ = true;
    woken_.notify_all();
  });
  warm_up();
  for (;;) {
    std::vector<uint64_t> cancelled;
    CommandQueue::Commands commands;
    {
      std::unique_lock lock(mutex_);
      const auto something = [&] {
        return stopping_ || read_ || !arrived_.empty() || !cancelled_.empty() || !commands_.empty();
      };
      if (engine_.idle() && (queue_.empty() || reading_)) woken_.wait(lock, something);
      read_ = false;
      std::move(arrived_.begin(), arrived_.end(), std::back_inserter(queue_));
      arrived_.clear();
      cancelled.swap(cancelled_);
      commands = commands_.take();
      if (stopping_) {
        lock.unlock();
        for (auto& command : commands) command();
        for (const auto& [ticket, job] : running_) engine_.cancel(ticket);
        return;
      }
    }
    for (auto& command : commands) command();
    for (const uint64_t id : cancelled) {
      const auto has_id = [&](const Job& job) { return job.id == id; };
      if (const auto found = std::find_if(queue_.begin(), queue_.end(), has_id); found != queue_.end()) {
        end(*found, "cancelled");
        queue_.erase(found);
      }
      const auto runs =
          std::find_if(running_.begin(), running_.end(), [&](const auto& one) { return has_id(one.second); });
      if (runs == running_.end()) continue;
      engine_.cancel(runs->first);
      end(runs->second, "cancelled");
      running_.erase(runs);
      blocked_ = false;
    }
    admit();
    publish();
    if (engine_.idle()) continue;
    step();
    publish();
  }
}

// Two tokens, so that a decode step has run as well; of mode full, which leaves nothing in the cache.
void Scheduler::warm_up() {
  std::string error;
  try {
    engine_.run({{.segments = {{0, 0}}, .max_tokens = 2, .logits = false}}, mode_named("full"));
  } catch (const std::exception& failed) {
    error = failed.what();
  }
  const std::scoped_lock lock(mutex_);
  warm_ = error.empty();
  warm_error_ = error;
  said_.notify_all();
}

// Files of the requests that wait, the first ones first: where there is no room for one's, those behind it only join
// what others read. The first of all waits for no room: it would be nobody's but theirs.
void Scheduler::read_ahead() {
  bool room = true;
  for (Job& job : queue_) {
    if (!job.ahead || (room && !job.ahead->begun())) {
      if (!job.ahead) job.ahead = engine_.wanted(job.request, options_.mode);
      engine_.read_ahead(*job.ahead, room);
    }
    room = room && job.ahead->begun();
    job.waits_for_room = !job.ahead->begun() && &job != &queue_.front();
  }
}

// Starts the next requests together, if there is room: one forward reads the weights once for all of them, and what
// several miss is computed once. Not while a prompt is under way, for it may leave what they need.
void Scheduler::admit() {
  if (engine_.idle()) blocked_ = false;
  read_ahead();
  reading_ = false;
  if (queue_.empty() || blocked_ || engine_.prefilling()) return;
  const auto ready = [](const Job& job) { return !job.waits_for_room && job.ahead->arrived(); };
  const auto passed_enough = [](const Job& job) { return job.passed >= kMostPassed; };
  const auto last = std::find_if(queue_.begin(), queue_.end(), passed_enough);
  const auto end = last == queue_.end() ? last : last + 1;
  const auto near = std::min(end, queue_.begin() + std::min<size_t>(queue_.size(), kMostPassed));
  auto first = std::find_if(queue_.begin(), near, [&](const Job& job) {
    return ready(job) && engine_.expected(job.request, options_.mode).is_cached;
  });
  if (first == near) first = std::find_if(queue_.begin(), end, ready);
  if (first == end) {
    reading_ = true;
    return;
  }
  std::vector<Job> group;
  std::vector<Request> requests;
  int64_t rows = 0;
  for (auto job = first; job != queue_.end();) {
    if (!ready(*job)) {
      ++job;
      continue;
    }
    if (std::any_of(queue_.begin(), job, passed_enough)) break;
    requests.push_back(job->request);
    rows += engine_.expected(job->request, options_.mode).rows;
    const bool alone = group.empty() && engine_.idle();  // what does not fit then never will: let it be said why
    if (!alone && !engine_.fits(requests, options_.mode)) break;
    if (!group.empty() && rows > options_.prompt_rows) break;
    group.push_back(std::move(*job));
    job = queue_.erase(job);
    std::for_each(queue_.begin(), job, [](Job& one) { ++one.passed; });
  }
  if (group.empty()) {
    blocked_ = true;
    return;
  }
  if (group.size() == 1) {
    start(std::move(group));
    return;
  }
  if (start(group)) return;
  // One of them is wrong: each for itself.
  std::vector<Job> later;
  for (Job& job : group) {
    if (blocked_)
      later.push_back(std::move(job));
    else
      start({std::move(job)});
  }
  queue_.insert(queue_.begin() + blocked_, std::make_move_iterator(later.begin()),
                std::make_move_iterator(later.end()));
}

// False: of several, none was started.
bool Scheduler::start(std::vector<Job> group) {
  std::vector<Request> requests;
  for (const Job& job : group) requests.push_back(job.request);
  try {
    const std::vector<Submitted> submitted = engine_.submit(requests, options_.mode);
    metrics_.together(static_cast<int64_t>(group.size()));
    for (size_t i = 0; i < group.size(); ++i) {
      Job& job = group[i];
      job.request = {};
      job.ahead.reset();
      job.reused = submitted[i].reused;
      metrics_.prompt(job.prompt, job.reused);
      running_.emplace(submitted[i].ticket, std::move(job));
    }
    return true;
  } catch (const OutOfMemory& error) {
    if (group.size() > 1) return false;
    if (engine_.idle()) {
      fail(group[0], 400, error.what());
    } else {  // others hold it: when one of them ends
      blocked_ = true;
      queue_.push_front(std::move(group[0]));
    }
  } catch (const std::exception& error) {
    if (group.size() > 1) return false;
    fail(group[0], dynamic_cast<const Error*>(&error) ? 400 : 500, error.what());
  }
  return true;
}

void Scheduler::step() {
  std::vector<Progress> progress;
  try {
    progress = engine_.step();
  } catch (const std::exception& error) {  // the engine has let go of everything
    blocked_ = false;
    for (auto& [ticket, job] : std::exchange(running_, {}))
      fail(job, dynamic_cast<const OutOfMemory*>(&error) ? 503 : 500, error.what());
    return;
  }
  for (const Progress& one : progress) {
    const auto found = running_.find(one.ticket);
    if (found == running_.end()) continue;  // cancelled
    Job& job = found->second;
    const auto now = Clock::now();
    if (job.started)
      metrics_.next_token(std::chrono::duration<double>(now - job.latest).count());
    else
      metrics_.first_token(since(job.arrived));
    job.started = true;
    job.latest = now;
    job.listener({.token = one.token, .last = one.last, .reused = job.reused});
    if (!one.last) continue;
    metrics_.finished(since(job.arrived), "done");
    running_.erase(found);
    blocked_ = false;
  }
}

void Scheduler::fail(Job& job, int status, const std::string& error) {
  job.listener({.kind = Notice::Kind::failed, .last = true, .status = status, .error = error});
  end(job, "error");
}

void Scheduler::end(const Job& job, const std::string& why) { metrics_.finished(since(job.arrived), why); }

void Scheduler::publish() {
  // Counting what is cached takes a while where that is much.
  constexpr double kOften = 0.5;
  std::optional<CacheUsage> usage;
  if (engine_.idle() || since(counted_) > kOften) {
    usage = engine_.usage();
    counted_ = Clock::now();
  }
  const std::scoped_lock lock(mutex_);
  if (usage) load_.cache = std::move(*usage);
  load_.running = static_cast<int64_t>(running_.size());
  waiting_ = static_cast<int64_t>(queue_.size() + arrived_.size());
}

}  // namespace hypic
