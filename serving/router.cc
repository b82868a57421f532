#include "serving/router.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <random>
#include <set>
#include <utility>

#include "core/check.h"

namespace hypic {
namespace {

using Clock = std::chrono::steady_clock;

double since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

}  // namespace

struct Router::Core : std::enable_shared_from_this<Core> {
  struct Worker {
    std::string name;
    std::shared_ptr<ScatterPeer> scatter;  // one of the two; neither: it was removed, its place is free
    std::shared_ptr<CombinePeer> combine;
    Life life;        // incarnation 0: down
    std::string why;  // it is down
    double load = 0;  // seconds of work that it was given and has not done
    CostModel compute;
    bool up() const { return life.incarnation != 0; }
  };
  struct Remote {
    size_t segment;
    uint64_t transfer;
    int worker;
    double cost;         // in its load
    bool ended = false;  // reported, or given up
  };
  // A request, from submit to its last notice.
  struct Ask {
    uint64_t id = 0;
    Request request;
    Listener listener;
    int64_t prompt = 0;
    int combine = -1;
    uint64_t call = 0;     // of the combine peer; 0: it has not returned yet
    uint64_t attempt = 0;  // numbers of all requests: what belongs to an earlier one is not heard
    int attempts = 0;
    std::vector<Remote> remote;
    double cost = 0;  // in the combining worker's load
    Clock::time_point arrived = Clock::now(), latest;
    bool started = false;
  };
  using Later = std::vector<std::function<void()>>;  // calls to others, once the lock is free

  Core(Metrics& metrics, const RouterOptions& options) : metrics(metrics), options(options) {
    std::random_device random;
    next_transfer = uint64_t{random()} << 32 | random();
  }

  Metrics& metrics;
  const RouterOptions options;
  mutable std::mutex mutex;  // of what follows
  std::vector<Worker> workers;
  std::map<std::string, std::string> unknown;  // names that stand for workers that combine: why for none
  std::map<uint64_t, Ask> asks;
  HitDirectory directory;
  CostModel transfer;
  uint64_t last_id = 0, last_attempt = 0, next_transfer = 0;
  size_t turn = 0;
  bool closed = false, draining = false;
  RouterCounters counters;

  static void run(Later& later) {
    for (const auto& call : later) call();
  }
  int64_t seam() const { return options.mode.head + options.mode.tail; }

  int64_t workers_up() const {
    return std::count_if(workers.begin(), workers.end(), [](const Worker& one) { return one.up(); });
  }

  // Empty where a worker that combines is up.
  std::string why_not_ready() const {
    std::vector<std::string> down;
    for (const auto& [name, why] : unknown) down.push_back(why);
    for (const Worker& one : workers) {
      if (one.combine && one.up()) return {};
      if (one.combine) down.push_back(one.why);
    }
    constexpr size_t kNamed = 4;
    std::string text = "no worker that combines is up";
    for (size_t i = 0; i < std::min(down.size(), kNamed); ++i) text += (i == 0 ? " (" : "; ") + down[i];
    if (down.size() > kNamed) text += str("; and ", down.size() - kNamed, " more");
    return text + (down.empty() ? "" : ")");
  }

  // Nothing refers to the place of a worker that was removed: what it had to do ended when it went down.
  int add(Worker worker) {
    worker.why = worker.name + ": not reached yet";
    const auto free =
        std::find_if(workers.begin(), workers.end(), [](const Worker& one) { return !one.scatter && !one.combine; });
    const auto number = static_cast<int>(free - workers.begin());
    if (free == workers.end())
      workers.push_back(std::move(worker));
    else
      *free = std::move(worker);
    return number;
  }

  // The one that is up and has most of the prompt, of equal ones the one with least to do.
  int choose(const std::vector<SegmentKey>& keys, const Request& request, int avoid) const {
    int best = -1;
    std::pair<double, double> rank;
    for (int w = 0; w < static_cast<int>(workers.size()); ++w) {
      if (!workers[w].combine || !workers[w].up()) continue;
      double held = w == avoid ? -1 : 0;
      for (size_t i = 0; i < keys.size() && w != avoid; ++i)
        if (directory.has(w, keys[i])) held += static_cast<double>(request.segments[i].size());
      const std::pair candidate(held, -workers[w].load);
      if (best < 0 || candidate > rank) best = w, rank = candidate;
    }
    return best;
  }

  // With the lock.
  void start(Ask& ask, int avoid, Later& later) {
    ask.attempt = ++last_attempt;
    ++ask.attempts;
    ask.call = 0;
    ask.remote.clear();
    const std::vector<Tokens>& segments = ask.request.segments;
    std::vector<SegmentKey> keys;
    for (size_t i = 0; i + 1 < segments.size(); ++i) keys.push_back(segment_key(segments[i]));
    ask.combine = choose(keys, ask.request, avoid);
    if (ask.combine < 0) {
      end(ask, {.kind = Notice::Kind::failed, .last = true, .status = 503, .error = why_not_ready()}, later);
      return;
    }
    Worker& combine = workers[ask.combine];
    std::vector<int> group = {ask.combine};
    for (int w = 0; w < static_cast<int>(workers.size()); ++w)
      if (workers[w].scatter && workers[w].up()) group.push_back(w);
    std::vector<size_t> missing;
    std::vector<AssignmentItem> items;
    std::set<SegmentKey> seen;
    double own = combine.compute(static_cast<double>(segments.back().size()));
    for (size_t i = 0; i < keys.size(); ++i) {
      const auto n = static_cast<double>(segments[i].size());
      if (segments[i].size() <= static_cast<size_t>(seam()) || options.mode.reuse != Reuse::segments) {
        own += combine.compute(n);
        continue;
      }
      if (!seen.insert(keys[i]).second) continue;
      if (directory.has(ask.combine, keys[i])) {
        ++counters.held;
        continue;
      }
      AssignmentItem item{combine.compute(n), transfer.measured() ? transfer(n) : 0};
      for (const int w : group) item.cached.push_back(directory.has(w, keys[i]));
      missing.push_back(i);
      items.push_back(std::move(item));
    }
    std::vector<double> loads;
    for (const int w : group) loads.push_back(workers[w].load);
    loads[0] += own;
    const Assignment assigned = assign(items, loads, options.policy, turn);
    ask.cost = own;
    std::vector<CombineWorker::Remote> remote;
    for (size_t i = 0; i < missing.size(); ++i) {
      const int w = group[assigned.worker[i]];
      if (w == ask.combine) {
        ++counters.own;
        ask.cost += items[i].compute;
        continue;
      }
      const double cost = (items[i].cached[assigned.worker[i]] ? 0 : items[i].compute) + items[i].transfer;
      workers[w].load += cost;
      ask.remote.push_back({missing[i], next_transfer, w, cost});
      remote.push_back({next_transfer++, missing[i]});
    }
    combine.load += ask.cost;
    CombinePeer::Events events;
    events.opened = [core = shared_from_this(), id = ask.id, attempt = ask.attempt](const auto& generations) {
      core->opened(id, attempt, generations);
    };
    events.notice = [core = shared_from_this(), id = ask.id, attempt = ask.attempt](const Notice& notice) {
      core->hear(id, attempt, notice);
    };
    later.push_back([core = shared_from_this(), peer = combine.combine, request = ask.request,
                     remote = std::move(remote), events = std::move(events), id = ask.id,
                     attempt = ask.attempt]() mutable {
      const uint64_t call = peer->generate(std::move(request), std::move(remote), std::move(events));
      {
        const std::scoped_lock lock(core->mutex);
        if (Ask* ask = core->find(id, attempt)) {
          ask->call = call;
          return;
        }
      }
      peer->cancel(call);  // cancelled meanwhile, or ended
    });
  }

  Ask* find(uint64_t id, uint64_t attempt) {
    const auto found = asks.find(id);
    return closed || found == asks.end() || found->second.attempt != attempt ? nullptr : &found->second;
  }

  // Work that is done, or will never be.
  void settle(Remote& remote) {
    if (std::exchange(remote.ended, true)) return;
    unload(remote.worker, remote.cost);
  }
  void unload(int worker, double cost) { workers[worker].load = std::max(0.0, workers[worker].load - cost); }
  void leave(Ask& ask) {
    for (Remote& remote : ask.remote) settle(remote);
    if (ask.combine >= 0) unload(ask.combine, std::exchange(ask.cost, 0));
  }

  void end(Ask& ask, Notice notice, Later& later) {
    leave(ask);
    metrics.finished(since(ask.arrived), notice.kind == Notice::Kind::failed ? "error" : "done");
    later.push_back([listener = std::move(ask.listener), notice = std::move(notice)] { listener(notice); });
    asks.erase(ask.id);
  }

  void opened(uint64_t id, uint64_t attempt, const std::vector<uint64_t>& generations) {
    Later later;
    {
      const std::scoped_lock lock(mutex);
      Ask* ask = find(id, attempt);
      if (!ask) return;
      const Worker& combine = workers[ask->combine];
      std::map<int, PrefillJob> jobs;
      std::map<int, std::vector<size_t>> which;  // of ask.remote
      for (size_t i = 0; i < ask->remote.size(); ++i) {
        Remote& remote = ask->remote[i];
        const uint64_t generation = i < generations.size() ? generations[i] : 0;
        if (generation == 0 || !workers[remote.worker].up()) {
          ++counters.recomputed;
          settle(remote);
          if (generation != 0)
            later.push_back(
                [peer = combine.combine, transfer = remote.transfer] { peer->fail(transfer, "its worker is down"); });
          continue;
        }
        PrefillJob& job = jobs[remote.worker];
        job.segments.push_back({ask->request.segments[remote.segment], remote.transfer, generation});
        which[remote.worker].push_back(i);
      }
      for (auto& [worker, job] : jobs) {
        job.destination = combine.life.address;
        job.deadline = Clock::now() + options.prefill_timeout;
        later.push_back([core = shared_from_this(), peer = workers[worker].scatter, job = std::move(job), id, attempt,
                         worker = worker, indices = which[worker]]() mutable {
          peer->prefill(std::move(job), [core, id, attempt, worker, indices](const PrefillReport& report) {
            core->reported(id, attempt, worker, indices, report);
          });
        });
      }
    }
    run(later);
  }

  void reported(uint64_t id, uint64_t attempt, int worker, const std::vector<size_t>& indices,
                const PrefillReport& report) {
    Later later;
    {
      const std::scoped_lock lock(mutex);
      if (closed) return;
      if (report.computed_tokens > 0) {
        workers[worker].compute.add(static_cast<double>(report.computed_tokens), report.computed);
        for (Worker& one : workers)  // the same model on the same kind of machine, until it is measured itself
          if (one.combine) one.compute.add(static_cast<double>(report.computed_tokens), report.computed);
        transfer.add(static_cast<double>(report.computed_tokens), report.sent);
      }
      Ask* ask = find(id, attempt);
      for (size_t i = 0; i < indices.size(); ++i) {
        const bool there = i < report.segments.size();
        const std::string error = there ? report.segments[i].error : "its worker said nothing of it";
        if (error.empty()) {
          ++counters.sent;
          counters.sent_cached += report.segments[i].cached;
        } else if (ask && !ask->remote[indices[i]].ended) {
          ++counters.recomputed;
          later.push_back([peer = workers[ask->combine].combine, transfer = ask->remote[indices[i]].transfer, error] {
            peer->fail(transfer, error);
          });
        }
        if (ask) settle(ask->remote[indices[i]]);
      }
    }
    run(later);
  }

  void hear(uint64_t id, uint64_t attempt, const Notice& notice) {
    Later later;
    {
      const std::scoped_lock lock(mutex);
      Ask* ask = find(id, attempt);
      if (!ask) return;
      if (notice.kind == Notice::Kind::failed) {
        if (notice.status == CombinePeer::kLost && !ask->started && ask->attempts < options.attempts) {
          retry(*ask, later);
        } else {
          end(*ask, notice, later);
        }
      } else {
        if (!ask->started) {
          metrics.prompt(ask->prompt, notice.reused);
          metrics.first_token(since(ask->arrived));
          unload(ask->combine, std::exchange(ask->cost, 0));
        } else {
          metrics.next_token(since(ask->latest));
        }
        ask->started = true;
        ask->latest = Clock::now();
        if (notice.last)
          end(*ask, notice, later);
        else
          later.push_back([listener = ask->listener, notice] { listener(notice); });
      }
    }
    run(later);
  }

  void retry(Ask& ask, Later& later) {
    ++counters.retried;
    leave(ask);
    start(ask, ask.combine, later);
  }

  void down(int worker, const std::string& cause) {
    Later later;
    {
      const std::scoped_lock lock(mutex);
      Worker& lost = workers.at(worker);
      const std::string why = lost.why = str(lost.name, ": ", cause);
      if (!lost.up()) return;
      lost.life = {};
      lost.load = 0;
      directory.forget(worker);
      std::vector<uint64_t> without;
      for (auto& [id, ask] : asks) {
        if (lost.combine && ask.combine == worker) without.push_back(id);
        for (Remote& remote : ask.remote) {
          if (remote.worker != worker || remote.ended) continue;
          ++counters.recomputed;
          settle(remote);
          later.push_back(
              [peer = workers[ask.combine].combine, transfer = remote.transfer, why] { peer->fail(transfer, why); });
        }
      }
      for (const uint64_t id : without) {
        Ask& ask = asks.at(id);
        if (ask.call != 0) later.push_back([peer = lost.combine, call = ask.call] { peer->cancel(call); });
        if (!ask.started && ask.attempts < options.attempts)
          retry(ask, later);
        else
          end(ask,
              {.kind = Notice::Kind::failed,
               .last = true,
               .status = CombinePeer::kLost,
               .error = CombinePeer::lost(why)},
              later);
      }
    }
    run(later);
  }
};

std::string CombinePeer::lost(const std::string& why) { return str("the worker that combines is lost: ", why); }

Router::Router(Metrics& metrics, const RouterOptions& options) : core_(std::make_shared<Core>(metrics, options)) {}

Router::~Router() {
  Core::Later later;
  {
    const std::scoped_lock lock(core_->mutex);
    core_->closed = true;
    for (auto& [id, ask] : core_->asks)
      if (ask.call != 0)
        later.push_back([peer = core_->workers[ask.combine].combine, call = ask.call] { peer->cancel(call); });
    core_->asks.clear();
    // Peers may hold calls that hold the core.
    later.push_back([workers = std::exchange(core_->workers, {})] {});
  }
  Core::run(later);
}

int Router::add_scatter(const std::string& name, std::shared_ptr<ScatterPeer> peer) {
  const std::scoped_lock lock(core_->mutex);
  return core_->add({.name = name, .scatter = std::move(peer)});
}

int Router::add_combine(const std::string& name, std::shared_ptr<CombinePeer> peer) {
  const std::scoped_lock lock(core_->mutex);
  return core_->add({.name = name, .combine = std::move(peer)});
}

void Router::remove(int worker) {
  down(worker, "it was removed");
  Core::Worker removed;  // its peer may hold calls that hold the core
  const std::scoped_lock lock(core_->mutex);
  std::swap(removed, core_->workers.at(worker));
}

void Router::unknown(const std::string& name, const std::string& why) {
  const std::scoped_lock lock(core_->mutex);
  if (why.empty())
    core_->unknown.erase(name);
  else
    core_->unknown[name] = why;
}

void Router::up(int worker, const Life& life) {
  HYPIC_CHECK(life.incarnation != 0);
  {
    const std::scoped_lock lock(core_->mutex);
    Core::Worker& known = core_->workers.at(worker);
    if (known.life.incarnation == life.incarnation || known.life.incarnation == 0) {
      known.life = life;
      return;
    }
  }
  down(worker, "its process began anew");
  const std::scoped_lock lock(core_->mutex);
  core_->workers.at(worker).life = life;
}

void Router::down(int worker, const std::string& why) { core_->down(worker, why); }

void Router::residues(int worker, uint64_t incarnation, bool snapshot, std::span<const ResidueChange> changes) {
  const std::scoped_lock lock(core_->mutex);
  if (core_->workers.at(worker).life.incarnation != incarnation) return;  // of a life that is over
  core_->directory.update(worker, incarnation, snapshot, changes);
}

uint64_t Router::submit(Request request, Listener listener) {
  Core::Later later;
  uint64_t id = 0;
  {
    const std::scoped_lock lock(core_->mutex);
    if (core_->draining || static_cast<int64_t>(core_->asks.size()) >= core_->options.max_waiting) return 0;
    id = ++core_->last_id;
    std::erase_if(request.segments, [](const Tokens& segment) { return segment.empty(); });
    Core::Ask& ask = core_->asks[id];
    ask.id = id;
    for (const Tokens& segment : request.segments) ask.prompt += static_cast<int64_t>(segment.size());
    ask.request = std::move(request);
    ask.listener = std::move(listener);
    ++core_->counters.requests;
    if (ask.request.segments.empty())
      core_->end(ask,
                 {.kind = Notice::Kind::failed, .last = true, .status = 400, .error = "a request ends in a question"},
                 later);
    else
      core_->start(ask, -1, later);
  }
  Core::run(later);
  return id;
}

void Router::cancel(uint64_t id) {
  Core::Later later;
  {
    const std::scoped_lock lock(core_->mutex);
    const auto found = core_->asks.find(id);
    if (found == core_->asks.end()) return;
    Core::Ask& ask = found->second;
    core_->leave(ask);
    core_->metrics.finished(since(ask.arrived), "cancelled");
    if (ask.call != 0)
      later.push_back([peer = core_->workers[ask.combine].combine, call = ask.call] { peer->cancel(call); });
    core_->asks.erase(found);
  }
  Core::run(later);
}

void Router::flush() {
  std::vector<std::shared_ptr<ScatterPeer>> scatter;
  std::vector<std::shared_ptr<CombinePeer>> combine;
  {
    const std::scoped_lock lock(core_->mutex);
    for (const Core::Worker& worker : core_->workers) {
      if (!worker.up()) continue;
      if (worker.scatter) scatter.push_back(worker.scatter);
      if (worker.combine) combine.push_back(worker.combine);
    }
  }
  for (const auto& peer : scatter) peer->flush();
  for (const auto& peer : combine) peer->flush();
}

void Router::drain() {
  const std::scoped_lock lock(core_->mutex);
  core_->draining = true;
}

Load Router::load() const {
  const std::scoped_lock lock(core_->mutex);
  Load load;
  for (const auto& [id, ask] : core_->asks) ++(ask.started ? load.running : load.waiting);
  load.why_not_ready = core_->why_not_ready();
  load.draining = core_->draining;
  const RouterCounters& now = core_->counters;
  load.router = {.workers_up = core_->workers_up(),
                 .retried = now.retried,
                 .segments = {{"scatter", now.sent - now.sent_cached},
                              {"scatter_cached", now.sent_cached},
                              {"combine", now.own},
                              {"combine_cached", now.held},
                              {"combine_after_failure", now.recomputed}}};
  return load;
}

int64_t Router::workers_up() const {
  const std::scoped_lock lock(core_->mutex);
  return core_->workers_up();
}

RouterCounters Router::counters() const {
  const std::scoped_lock lock(core_->mutex);
  return core_->counters;
}

}  // namespace hypic
