#include "serving/scatter_worker.h"

#include <algorithm>
#include <map>
#include <utility>

#include "core/check.h"

namespace hypic {
namespace {

using Events = std::vector<std::shared_ptr<Event>>;

void wait_for(const Events& events) {
  for (const auto& event : events)
    if (event) event->wait();
}

double seconds(std::chrono::steady_clock::duration time) { return std::chrono::duration<double>(time).count(); }

}  // namespace

struct ScatterWorker::Job {
  PrefillJob wanted;
  std::function<void(const PrefillReport&)> done;
  PrefillReport report;
  size_t left = 0;  // segments without an end
  Clock::time_point arrived = Clock::now();
  bool begun = false;
};

// Segments of one forward, each computed once and sent to whoever wants it.
struct ScatterWorker::Group {
  struct One {
    std::vector<Waiting> wanted;
    int64_t tokens = 0;
    StreamLayout layout;              // of staging memory
    HostArena::Range staging;         // until the group is sent and kept; empty: no packets are made of it
    ByteArena::Range device_staging;  // of what goes to windows; empty: nothing does
    bool cached = false;
    size_t sent = 0;  // layers
  };
  std::vector<Tokens> segments;
  std::vector<One> ones;  // by segment
  int64_t rows = 0;       // computed
  Clock::time_point start, computed;
};

// Layers [first, last) of one segment, or of all that are computed, which `copied` says are in host memory.
struct ScatterWorker::Sending {
  std::shared_ptr<Group> group;
  size_t segment;  // kAll: all that are computed
  size_t first, last;
  Events copied;      // of each rank; null: its part is
  std::string error;  // in place of the bytes

  static constexpr size_t kAll = ~size_t{0};
};

// What all ranks have taken their parts of is sent.
class ScatterWorker::Sink final : public ResidueSink {
 public:
  // `which`: of the group, by the engine's count.
  Sink(ScatterWorker& worker, std::shared_ptr<Group> group, const std::vector<size_t>& which)
      : worker_(worker), group_(std::move(group)), which_(which), ranks_(worker_.model_.spec().ranks) {
    for (Rank& rank : ranks_) rank.ones.resize(group_->ones.size());
  }

  void begin(const RankPools& at, size_t asked, const Placement& from, bool cached) override {
    const size_t index = which_[asked];
    Group::One& one = group_->ones[index];
    ranks_[at.rank].ones[index] = {from, cached};
    if (at.rank == 0) {
      one.cached = cached;
      if (!cached) group_->rows += one.tokens;
    }
    if (!cached) return;
    for (size_t layer = 0; layer < one.layout.layers(); ++layer) take(at, index, layer);
    push(at, index, 0, one.layout.layers());
  }
  void after(const RankPools& at, int layer) override {
    for (const size_t i : which_)
      if (!ranks_[at.rank].ones[i].cached) take(at, i, layer);
    push(at, Sending::kAll, layer, layer + 1);
  }

  // By rank, when all that was taken is in staging memory. While the engine does nothing.
  Events copied() const {
    Events events;
    for (const Rank& rank : ranks_) events.push_back(rank.copied);
    return events;
  }

 private:
  struct Rank {
    struct One {
      Placement from;
      bool cached = false;
    };
    std::vector<One> ones;  // by segment
    size_t pushed = 0;
    std::shared_ptr<Event> copied;  // all so far; null: they are
  };

  void take(const RankPools& at, size_t index, size_t layer) {
    const Group::One& one = group_->ones[index];
    const LayerSections& sections = one.layout.sections(layer);
    const Placement& from = ranks_[at.rank].ones[index].from;
    const int64_t begin = one.layout.part_begin(layer, at.rank);
    if (one.staging) enqueue_download(at.backend, at.pools, sections, from, one.staging.data() + begin);
    if (one.device_staging) enqueue_gather(at.backend, at.pools, sections, from, one.device_staging.data() + begin);
  }
  // The ranks push the same in the same order.
  void push(const RankPools& at, size_t segment, size_t first, size_t last) {
    Rank& rank = ranks_[at.rank];
    rank.copied = at.backend.record();
    const std::scoped_lock lock(worker_.mutex_);
    if (rank.pushed == pushed_.size()) pushed_.push_back({group_, segment, first, last, {}, {}});
    Sending& sending = pushed_[rank.pushed++];
    HYPIC_CHECK(sending.segment == segment && sending.first == first, "rank ", at.rank, " has other residues");
    sending.copied.push_back(rank.copied);
    if (sending.copied.size() < ranks_.size()) return;
    worker_.sendings_.push_back(std::move(sending));
    worker_.changed_.notify_all();
  }

  ScatterWorker& worker_;
  const std::shared_ptr<Group> group_;
  const std::vector<size_t>& which_;
  std::vector<Rank> ranks_;      // each its own
  std::vector<Sending> pushed_;  // by some rank; with the worker's lock
};

ScatterWorker::ScatterWorker(Engine& engine, const Model& model, Transports& transports, const ScatterOptions& options)
    : engine_(engine),
      model_(model),
      transports_(transports),
      options_(options),
      staging_(model.backend(), options.staging_bytes),
      device_memory_(options.device_bytes > 0 && model.spec().ranks == 1 ? model.backend().share(options.device_bytes)
                                                                         : nullptr),
      device_staging_(device_memory_ ? std::make_unique<ByteArena>(device_memory_->data(), device_memory_->size())
                                     : nullptr),
      copies_(device_memory_ ? model.backend().copies() : nullptr),
      computing_([this] { compute(); }),
      sending_([this] { send(); }) {}

ScatterWorker::~ScatterWorker() {
  {
    const std::scoped_lock lock(mutex_);
    stopping_ = true;
    commands_.close();
  }
  changed_.notify_all();
  computing_.join();
  {
    const std::scoped_lock lock(mutex_);
    computed_ = true;
  }
  changed_.notify_all();
  sending_.join();
}

void ScatterWorker::prefill(PrefillJob wanted, std::function<void(const PrefillReport&)> done) {
  auto job = std::make_shared<Job>();
  const size_t count = wanted.segments.size();
  job->left = count;
  job->report.segments.resize(wanted.segments.size());
  job->wanted = std::move(wanted);
  job->done = std::move(done);
  std::string refused;
  {
    const std::scoped_lock lock(mutex_);
    if (stopping_)
      refused = "the worker ends";
    else if (static_cast<int64_t>(queue_.size() + count) > options_.max_waiting)
      refused = str("more than ", options_.max_waiting, " segments wait");
    else
      for (size_t i = 0; i < count; ++i) queue_.push_back({job, i});
  }
  changed_.notify_all();
  if (refused.empty() && count > 0) return;  // the job is the worker's now
  for (PrefillReport::Segment& segment : job->report.segments) segment.error = refused;
  job->done(job->report);
}

void ScatterWorker::flush() {
  commands_.run([this] { engine_.flush(); });
}

int64_t ScatterWorker::waiting() const {
  const std::scoped_lock lock(mutex_);
  return static_cast<int64_t>(queue_.size());
}

void ScatterWorker::compute() {
  engine_.enter_thread();
  for (;;) {
    auto group = std::make_shared<Group>();
    std::vector<Waiting> late;
    CommandQueue::Commands commands;
    bool stop;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return stopping_ || !queue_.empty() || !commands_.empty(); });
      stop = stopping_;
      commands = commands_.take();
      std::map<Tokens, size_t> known;
      int64_t rows = 0;
      while (!queue_.empty()) {
        Waiting& next = queue_.front();
        const Tokens& tokens = next.job->wanted.segments[next.segment].tokens;
        if (stop || Clock::now() > next.job->wanted.deadline) {
          late.push_back(std::move(next));
          queue_.pop_front();
          continue;
        }
        const auto n = static_cast<int64_t>(tokens.size());
        auto found = known.find(tokens);
        if (found == known.end()) {
          if (!group->segments.empty() && rows + n > options_.rows) break;
          rows += n;
          found = known.emplace(tokens, group->segments.size()).first;
          group->segments.push_back(tokens);
          group->ones.emplace_back().tokens = n;
        }
        if (!std::exchange(next.job->begun, true)) next.job->report.waited = seconds(Clock::now() - next.job->arrived);
        group->ones[found->second].wanted.push_back(std::move(next));
        queue_.pop_front();
      }
    }
    for (auto& command : commands) command();
    for (const Waiting& one : late) {
      auto alone = std::make_shared<Group>();
      alone->segments.emplace_back();
      alone->ones.emplace_back().wanted.push_back(one);
      const std::scoped_lock lock(mutex_);
      sendings_.push_back(
          {std::move(alone), 0, 0, 0, {}, stop ? "the worker ends" : "its time was over before its turn came"});
      changed_.notify_all();
    }
    if (stop) return;
    if (!group->segments.empty()) run(std::move(group));
  }
}

// Segments for which there is no staging memory now wait until some has been sent.
void ScatterWorker::run(std::shared_ptr<Group> group) {
  std::string error;
  for (Group::One& one : group->ones) {
    if (one.tokens <= options_.mode.head + options_.mode.tail || one.tokens >= model_.spec().max_positions) {
      error = str("a segment of ", one.tokens, " tokens leaves no residue in this model and mode");
      break;
    }
    one.layout = StreamLayout(model_, one.tokens);
  }
  if (error.empty() && copies_) ask_for_windows(*group);
  for (size_t i = 0; i < group->ones.size() && error.empty(); ++i) {
    Group::One& one = group->ones[i];
    const auto has_window = [](const Waiting& waiting) { return waiting.window != nullptr; };
    const bool windows = std::any_of(one.wanted.begin(), one.wanted.end(), has_window);
    const bool packets = options_.store || !std::all_of(one.wanted.begin(), one.wanted.end(), has_window);
    if (packets && one.layout.bytes() > options_.staging_bytes) {
      error = str("a residue of ", one.layout.bytes(), " bytes does not fit the ", options_.staging_bytes,
                  " bytes for those on their way");
      break;
    }
    const auto staged = [&] {
      if (packets && !one.staging) one.staging = staging_.take(one.layout.bytes(), HostArena::End::lower);
      if (windows && !one.device_staging)
        one.device_staging = device_staging_->take(one.layout.bytes(), ByteArena::End::lower);
      return (!packets || one.staging) && (!windows || one.device_staging);
    };
    while (!staged()) {
      if (i == 0) {  // all of it is with the sending thread, which gives it back
        std::unique_lock lock(mutex_);
        changed_.wait_for(lock, std::chrono::milliseconds(1));
        continue;
      }
      // What fits is computed now, the rest afterwards.
      const std::scoped_lock lock(mutex_);
      for (size_t j = group->ones.size(); j-- > i;)
        for (size_t k = group->ones[j].wanted.size(); k-- > 0;) queue_.push_front(std::move(group->ones[j].wanted[k]));
      group->ones.resize(i);
      group->segments.resize(i);
      break;
    }
  }
  group->start = Clock::now();
  std::vector<size_t> which;  // are computed, or cached
  Sink sink(*this, group, which);
  if (error.empty()) {
    try {
      // Those in the store need no forward.
      std::vector<Tokens> asked;
      for (size_t i = 0; i < group->ones.size(); ++i)
        if (!fetch(group, i)) {
          asked.push_back(group->segments[i]);
          which.push_back(i);
        }
      if (!asked.empty()) engine_.warm(asked, options_.mode, {.sink = &sink});
      // Where a rank fails in the next forward, sums of this one that still ran would end as well, and say nothing.
      if (options_.store || model_.spec().ranks > 1) wait_for(sink.copied());
      for (const size_t i : which)
        if (options_.store && !group->ones[i].cached) keep(*group, i);
      return;
    } catch (const std::exception& failed) {
      error = failed.what();
    }
  }
  const std::scoped_lock lock(mutex_);
  for (size_t i = 0; i < group->ones.size(); ++i) sendings_.push_back({group, i, 0, 0, sink.copied(), error});
  changed_.notify_all();
}

// Once a receiver and job; what has no window goes by packets.
void ScatterWorker::ask_for_windows(Group& group) {
  std::map<std::string, std::vector<std::pair<Waiting*, Transport::Wanted>>> asked;
  for (Group::One& one : group.ones)
    for (Waiting& waiting : one.wanted) {
      const PrefillJob& job = waiting.job->wanted;
      const PrefillJob::Segment& segment = job.segments[waiting.segment];
      if (!waiting.window && one.layout.bytes() <= options_.device_bytes)
        asked[job.destination].push_back({&waiting, {segment.transfer, segment.generation, one.layout.bytes()}});
    }
  for (const auto& [destination, waiting] : asked) {
    std::vector<Transport::Wanted> wanted;
    for (const auto& [who, what] : waiting) wanted.push_back(what);
    try {
      const auto windows = transports_.to(destination)->windows(wanted);
      for (size_t i = 0; i < waiting.size(); ++i) waiting[i].first->window = windows[i];
    } catch (const Error&) {  // no address: sending will say so
    }
  }
}

// From the store to where it is sent from.
bool ScatterWorker::fetch(const std::shared_ptr<Group>& group, size_t index) {
  const Mode& mode = options_.mode;
  const Tokens& tokens = group->segments[index];
  if (!options_.store || engine_.cache().has_residue(tokens, mode.operator_first(), mode.tail)) return false;
  const std::string name = residue_name(options_.identity, tokens, mode.operator_first(), mode.tail);
  Group::One& one = group->ones[index];
  const auto value = options_.store->get(name, kStoredHead + one.layout.bytes());
  if (!value) {
    if (const std::string error = options_.store->error(); !error.empty() && options_.say) options_.say(error);
    return false;
  }
  const std::span<const uint8_t> layers = layers_of(name, *value);
  if (static_cast<int64_t>(layers.size()) != one.layout.bytes()) return false;
  std::copy(layers.begin(), layers.end(), one.staging.data());
  one.cached = true;
  for (Waiting& waiting : one.wanted) waiting.window.reset();
  ++fetched_;
  const std::scoped_lock lock(mutex_);
  sendings_.push_back({group, index, 0, one.layout.layers(), {}, {}});
  changed_.notify_all();
  return true;
}

void ScatterWorker::keep(const Group& group, size_t index) {
  const Mode& mode = options_.mode;
  const std::string name = residue_name(options_.identity, group.segments[index], mode.operator_first(), mode.tail);
  const Group::One& one = group.ones[index];
  options_.store->put(name, stored_residue(name, {one.staging.data(), static_cast<size_t>(one.layout.bytes())}));
  if (std::string error = options_.store->error(); error.empty())
    ++kept_;
  else if (options_.say)
    options_.say(error);
}

void ScatterWorker::send() {
  engine_.enter_thread();  // for the events that it waits for
  for (;;) {
    Sending next;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return computed_ || !sendings_.empty(); });
      if (sendings_.empty()) return;
      next = std::move(sendings_.front());
      sendings_.pop_front();
    }
    send(next);
  }
}

void ScatterWorker::send(const Sending& sending) {
  Group& group = *sending.group;
  const bool all = sending.segment == Sending::kAll;
  const size_t first = all ? 0 : sending.segment, last = all ? group.ones.size() : first + 1;
  const auto concerns = [&](const Group::One& one) { return !(all && one.cached) && !one.wanted.empty(); };
  // Calls visit(one, waiting, way, packet) for whoever waits for these layers; what throws is the report's.
  const auto each = [&](auto&& visit) {
    for (size_t i = first; i < last; ++i) {
      Group::One& one = group.ones[i];
      if (!concerns(one)) continue;
      for (Waiting& waiting : one.wanted) {
        const PrefillJob& job = waiting.job->wanted;
        std::string& failed = waiting.job->report.segments[waiting.segment].error;
        if (!failed.empty()) continue;
        try {
          const PrefillJob::Segment& wanted = job.segments[waiting.segment];
          visit(one, waiting, *transports_.to(job.destination),
                Packet{.transfer = wanted.transfer, .generation = wanted.generation});
        } catch (const std::exception& error) {
          if (failed.empty()) failed = error.what();
        }
      }
    }
  };
  const auto layers = [&](const Group::One& one, auto&& visit) {
    for (size_t layer = sending.first; layer < sending.last; ++layer)
      if (const int64_t size = one.layout.size(layer); size > 0)
        visit(static_cast<int32_t>(layer), one.layout.begin(layer), size);
  };
  std::string error = sending.error;
  const bool ends = !error.empty() || sending.last == group.ones[first].layout.layers();
  bool windows = false, packets = false;
  each([&](const Group::One&, const Waiting& waiting, Transport&, const Packet&) {
    (waiting.window ? windows : packets) = true;
  });
  std::vector<BytesCopy> sent;  // to windows of other processes, or to be
  std::vector<uint64_t> sums;   // and their checksums
  std::map<std::pair<const Waiting*, int32_t>, size_t> which;
  try {
    if (windows && error.empty()) {
      for (const auto& copied : sending.copied)
        if (copied) copies_->wait_for(*copied);
      each([&](const Group::One& one, const Waiting& waiting, Transport&, const Packet&) {
        if (!waiting.window) return;
        layers(one, [&](int32_t layer, int64_t begin, int64_t size) {
          uint8_t* const to = waiting.window->data;
          const BytesCopy copy{to ? to + begin : nullptr, one.device_staging.data() + begin, size};
          if (to) copies_->copy(copy);
          if (waiting.window->same_process) return;
          which[{&waiting, layer}] = sent.size();
          sent.push_back(copy);
        });
      });
      const std::shared_ptr<Event> ready = copies_->record();
      each([&](const Group::One& one, const Waiting& waiting, Transport& way, Packet packet) {
        if (!waiting.window || !waiting.window->same_process) return;
        packet.kind = Packet::Kind::landed;
        packet.ready = ready;
        layers(one, [&](int32_t layer, int64_t, int64_t) {
          packet.layer = layer;
          way.send(packet);
        });
      });
    }
    if (packets || ends) wait_for(sending.copied);
    group.computed = Clock::now();  // the last layer's stays
    if (!sent.empty()) sums = copies_->checksums(sent);
  } catch (const std::exception& failed) {
    error = failed.what();
  }
  each([&](const Group::One& one, const Waiting& waiting, Transport& way, Packet packet) {
    if (!error.empty()) {
      waiting.job->report.segments[waiting.segment].error = error;
      packet.kind = Packet::Kind::failed;
      packet.bytes = {reinterpret_cast<const uint8_t*>(error.data()), std::min(error.size(), kMaxPacketBytes)};
      way.send(packet);
    } else if (!waiting.window) {
      layers(one, [&](int32_t layer, int64_t begin, int64_t size) {
        packet.layer = layer;
        for (int64_t at = 0; at < size; at += kMaxPacketBytes) {
          packet.offset = static_cast<uint64_t>(at);
          packet.bytes = {one.staging.data() + begin + at,
                          static_cast<size_t>(std::min<int64_t>(kMaxPacketBytes, size - at))};
          way.send(packet);
        }
      });
    } else if (!waiting.window->same_process) {
      packet.kind = Packet::Kind::landed;
      layers(one, [&](int32_t layer, int64_t begin, int64_t size) {
        packet.layer = layer;
        packet.bytes = {reinterpret_cast<const uint8_t*>(&sums[which.at({&waiting, layer})]), kChecksumBytes};
        if (waiting.window->data)
          way.send(packet);
        else
          waiting.window->put(packet, begin, one.device_staging.data() + begin, size);
      });
    }
  });
  each([](const Group::One&, const Waiting& waiting, Transport&, const Packet&) {
    if (waiting.window && !waiting.window->data) waiting.window->flush();
  });
  // Windows and what is copied to them go when nothing is under way any more.
  if (copies_ && (ends || !error.empty())) {
    try {
      if (const auto copied = copies_->record()) copied->wait();
    } catch (const std::exception&) {  // a device that failed copies no more
    }
  }
  for (size_t i = first; i < last; ++i) {
    Group::One& one = group.ones[i];
    if (!concerns(one)) continue;
    one.sent = error.empty() ? sending.last : one.layout.layers();
    if (error.empty() && one.sent < one.layout.layers()) continue;
    const auto wanted = std::exchange(one.wanted, {});
    for (const Waiting& waiting : wanted) {
      Job& job = *waiting.job;
      PrefillReport& report = job.report;
      report.segments[waiting.segment].cached = one.cached;
      if (!one.cached && group.rows > 0) {
        report.computed_tokens += one.tokens;
        report.computed +=
            seconds(group.computed - group.start) * static_cast<double>(one.tokens) / static_cast<double>(group.rows);
      }
      report.sent = seconds(Clock::now() - group.computed);
      if (--job.left == 0) job.done(report);
    }
  }
  changed_.notify_all();
}

}  // namespace hypic
