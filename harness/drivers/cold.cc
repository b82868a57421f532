#include <algorithm>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>

#include "core/check.h"
#include "harness/backends.h"
#include "harness/driver.h"
#include "harness/measure/cold_simulation.h"
#include "harness/model_choice.h"
#include "kernels/device.h"
#include "serving/local_peers.h"
#include "serving/tcp_transport.h"

namespace hypic {
namespace {

using Clock = std::chrono::steady_clock;

double seconds(Clock::duration time) { return std::chrono::duration<double>(time).count(); }

double median(std::vector<double> x) {
  std::sort(x.begin(), x.end());
  const size_t n = x.size();
  return n == 0 ? NAN : (x[(n - 1) / 2] + x[n / 2]) / 2;
}

struct Settings {
  ModelChoice model;
  Mode mode;
  std::vector<int64_t> lengths;  // tokens of each segment
  int64_t question = 0, repeats = 0, rows = 0;
  std::vector<int64_t> workers;
  std::vector<Policy> policies;
  bool tcp = false;
  bool windows = false;     // residues go from device to device
  bool one_device = false;  // all workers
  int64_t ranks = 1;        // tensor-parallel ones of each worker
  int64_t most() const { return *std::max_element(workers.begin(), workers.end()); }
};

// A worker's weights and engine.
struct Machine {
  Machine(const ModelChoice& choice, int64_t rows, const PoolSizes& pools)
      : open(choice), engine(model, {.pools = pools, .max_rows = static_cast<int32_t>(rows)}) {}
  const OpenModel open;
  const Model& model = open.model();
  Engine engine;
};

// When things happened, from the request on; for several threads.
struct Phases {
  double scatter = 0, arrived = 0, total = 0;  // as ColdTimes; arrived: until the last report
  double computed = 0, sent = 0;               // the longest of a worker
  bool failed = false;
};

class Watched final : public ScatterPeer {
 public:
  Watched(ScatterWorker& worker, std::function<void(const PrefillReport&)> see) : peer_(worker), see_(std::move(see)) {}
  void prefill(PrefillJob job, std::function<void(const PrefillReport&)> done) override {
    peer_.prefill(std::move(job), [see = see_, done = std::move(done)](const PrefillReport& report) {
      see(report);
      done(report);
    });
  }
  void flush() override { peer_.flush(); }

 private:
  LocalScatter peer_;
  const std::function<void(const PrefillReport&)> see_;
};

// Takes residues and forgets them; into windows of this memory, where there is any, one upon the other.
class Nowhere final : public PacketSink {
 public:
  explicit Nowhere(std::unique_ptr<SharedMemory> memory) : memory_(std::move(memory)) {}
  void take(const Packet&) override {}
  void lost(std::span<const uint64_t>, const std::string&) override {}
  std::shared_ptr<Window> window(uint64_t, uint64_t, int64_t bytes) override {
    if (!memory_ || bytes > memory_->size()) return nullptr;
    auto window = std::make_shared<Window>();
    window->data = memory_->data();
    window->bytes = bytes;
    window->memory = memory_.get();
    window->same_process = true;
    return window;
  }

 private:
  const std::unique_ptr<SharedMemory> memory_;
};

class ColdRun {
 public:
  ColdRun(const SuiteCase& suite_case, const std::string& where, const DriverContext& context) {
    Parameters parameters(suite_case.parameters, where + ".parameters");
    try {
      settings_.model = read_model_choice(parameters, context);
    } catch (const Error& error) {
      std::string why_none;
      if (!backend_of(suite_case, context).starts_with("cuda") || !gpus(&why_none).empty()) throw;
      fail(error.what(), "; without a GPU: hypic run suites/cold_tiny.json");
    }
    settings_.mode = mode_named(parameters.text("mode", "transition_rope_seam"));
    const int64_t segments = parameters.integer("segments", 8, 1, 4096);
    const int64_t tokens = parameters.integer("tokens", 64, 1, 1 << 20);
    settings_.lengths = parameters.integers("lengths", std::vector<int64_t>(segments, tokens), 1, 1 << 20);
    settings_.question = parameters.integer("question", 16, 1, 1 << 20);
    settings_.repeats = parameters.integer("repeats", 3, 1, 1000);
    settings_.rows = parameters.integer("rows", 8192, 1, 1 << 20);
    settings_.workers = parameters.integers("workers", {1, 2}, 1, 64);
    for (const std::string& policy : parameters.texts("policies", {"lpt", "round_robin"}))
      settings_.policies.push_back(policy_named(policy));
    const std::string transport = parameters.text("transport", "in_process");
    const std::string devices = parameters.text("devices", "each");
    settings_.ranks = parameters.integer("tensor_parallel", 1, 1, kMostRanks);
    parameters.refuse_others();
    require(devices == "each" || devices == "one", where, ".parameters.devices: must be each or one, is \"", devices,
            "\"");
    settings_.one_device = devices == "one";
    require(transport == "in_process" || transport == "in_process_host" || transport == "tcp", where,
            ".parameters.transport: must be in_process, in_process_host or tcp, is \"", transport, "\"");
    settings_.tcp = transport == "tcp";
    settings_.windows = transport == "in_process" && settings_.ranks == 1;
    require(settings_.mode.reuse == Reuse::segments, where, ".parameters.mode: must reuse segments, is ",
            settings_.mode.name);
    require(!settings_.workers.empty() && settings_.workers.front() == 1, where,
            ".parameters.workers: must begin with 1, which the others are compared with");
    const ModelSpec spec = spec_of(settings_.model.model);
    part_of(spec, 0, static_cast<int>(settings_.ranks));
    for (size_t i = 0; i < settings_.lengths.size(); ++i)
      request_.segments.push_back(random_tokens(settings_.lengths[i], spec.vocabulary, i + 1));
    request_.segments.push_back(random_tokens(settings_.question, spec.vocabulary, settings_.lengths.size() + 1));
    request_.max_tokens = 1;
    request_.logits = false;
    require(total_tokens() + 1 <= spec.max_positions, where, ".parameters: the prompt of ", total_tokens(),
            " tokens exceeds the model's ", spec.max_positions, " positions");
  }

  Result run(const ProgressFn& progress) {
    Result result;
    const bool gpu = settings_.model.backend.starts_with("cuda"), apart = gpu && !settings_.one_device;
    if (gpu) {
      std::string why;
      const auto found = static_cast<int64_t>(gpus(&why).size());
      const int64_t needed = apart ? settings_.most() * settings_.ranks : 1;
      if (found < needed) {
        result.verdict = Verdict::skip;
        result.why = str(needed, " GPUs are needed, ", found, " found", why.empty() ? "" : ": " + why);
        return result;
      }
    }
    for (int64_t i = 0; i < settings_.most(); ++i) {
      progress(0, str("worker ", i + 1));
      ModelChoice choice = settings_.model;
      for (int64_t rank = 0; rank < settings_.ranks; ++rank)
        choice.devices.push_back(apart ? static_cast<int>(i * settings_.ranks + rank) : 0);
      machines_.push_back(std::make_unique<Machine>(choice, settings_.rows, pools()));
    }
    machines_[0]->engine.enter_thread();
    expected_ = machines_[0]->engine.run({request_}, settings_.mode).responses[0].tokens;
    machines_[0]->engine.flush();
    calibrate();
    std::vector<Measured> cells;
    const double steps = static_cast<double>(settings_.workers.size() * settings_.policies.size());
    for (const int64_t workers : settings_.workers)
      for (const Policy policy : settings_.policies) {
        progress(static_cast<double>(cells.size()) / steps, str(workers, " workers, ", name_of(policy)));
        cells.push_back(measure(static_cast<int>(workers), policy));
      }
    for (const auto& machine : machines_) {
      machine->engine.enter_thread();
      machine->engine.flush();
      machine->engine.check_integrity();
    }
    report(result, cells);
    machines_.clear();
    return result;
  }

 private:
  struct Measured {
    int workers;
    Policy policy;
    Phases median;
    int64_t failed = 0;  // repeats with another answer, or a segment that did not come
    int64_t remote = 0;  // segments that others sent
    int64_t host = 0;    // of all repeats' those that came through host memory
    ColdTimes simulated;
  };

  int64_t total_tokens() const {
    return std::accumulate(settings_.lengths.begin(), settings_.lengths.end(), settings_.question);
  }
  PoolSizes pools() const {
    const auto n = static_cast<int64_t>(settings_.lengths.size());
    const int64_t seams = settings_.mode.head + settings_.mode.tail;
    PoolSizes pools;
    pools.state_slots = 2 * n + 4;
    pools.operator_slots = n + 1;
    pools.pages = (total_tokens() + n * seams) / pools.page_size + 2 * n + 4;
    return pools;
  }
  // What all residues together take on a device; 0: they do not go there directly.
  int64_t window_bytes() const {
    double bytes = 0;
    for (const int64_t n : settings_.lengths) bytes += bytes_of_residue(n) + static_cast<double>(ByteArena::kAlignment);
    return settings_.windows ? static_cast<int64_t>(bytes) : 0;
  }
  ScatterOptions scattering() const {
    constexpr int64_t kMost = int64_t{4} << 30;  // two forwards of the residues of large models
    return {.mode = settings_.mode, .rows = settings_.rows, .device_bytes = std::min(window_bytes(), kMost)};
  }
  double bytes_of_residue(int64_t tokens) const {
    return static_cast<double>(StreamLayout(machines_[0]->model, tokens).bytes());
  }

  // What one worker costs: forwards of one, two, four … of the segments, sent to nobody; residues put into place.
  void calibrate() {
    Machine& machine = *machines_[0];
    Nowhere nowhere(settings_.windows ? machines_.back()->model.backend().share(window_bytes()) : nullptr);
    InProcessTransports local;
    TcpTransports tcp;
    std::optional<TcpReceiver> receiver;
    std::string address = "nowhere";
    if (settings_.tcp) {
      receiver.emplace(nowhere, "127.0.0.1", 0);
      address = str("127.0.0.1:", receiver->port());
    } else {
      local.add(address, nowhere);
    }
    CostModel compute, send;
    std::vector<std::pair<double, double>> points;
    {
      ScatterWorker worker(machine.engine, machine.model, settings_.tcp ? static_cast<Transports&>(tcp) : local,
                           scattering());
      for (size_t count = 1;; count = std::min(2 * count, settings_.lengths.size())) {
        for (int64_t repeat = 0; repeat < 3; ++repeat) {
          worker.flush();
          PrefillJob job{.destination = address, .deadline = Clock::now() + std::chrono::hours(1)};
          double bytes = 0;
          for (size_t i = 0; i < count; ++i) {
            job.segments.push_back({request_.segments[i], i + 1, 1});
            bytes += bytes_of_residue(settings_.lengths[i]);
          }
          const PrefillReport report = prefilled(worker, std::move(job));
          for (const auto& segment : report.segments) require(segment.error.empty(), segment.error);
          if (repeat == 0) continue;  // what happens once
          compute.add(static_cast<double>(report.computed_tokens), report.computed);
          points.emplace_back(bytes, report.sent);
        }
        if (count == settings_.lengths.size()) break;
      }
      worker.flush();
    }
    costs_.forward = compute(0);
    costs_.token = compute(1e6) / 1e6 - compute(0) / 1e6;
    place();
    double most = 0, longest = 0;  // the last layer's alone are left to send when the computing ends
    for (const auto& [bytes, sent] : points)
      if (bytes >= most) most = bytes, longest = sent;
    const auto layers = static_cast<double>(machine.model.spec().layer_count());
    costs_.send_byte = most > 0 ? longest / (most / layers) : 0;
    // A question alone, less what its rows cost.
    Request question = request_;
    question.segments = {request_.segments.back()};
    std::vector<double> times;
    for (int repeat = 0; repeat < 5; ++repeat) {
      const auto start = Clock::now();
      machine.engine.run({question}, settings_.mode);
      times.push_back(seconds(Clock::now() - start));
    }
    costs_.request =
        std::max(0.0, median(times) - costs_.forward - costs_.token * static_cast<double>(settings_.question));
  }

  static PrefillReport prefilled(ScatterWorker& worker, PrefillJob job) {
    std::mutex mutex;
    std::condition_variable changed;
    std::optional<PrefillReport> report;
    worker.prefill(std::move(job), [&](const PrefillReport& done) {
      const std::scoped_lock lock(mutex);
      report = done;
      changed.notify_all();
    });
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return report.has_value(); });
    return *report;
  }

  // A residue, of one rank its part, from where it arrives, into slots of pools of its own.
  void place() {
    Machine& machine = *machines_[0];
    Backend& backend = machine.model.backend();
    const int64_t tokens = *std::max_element(settings_.lengths.begin(), settings_.lengths.end());
    const PoolSizes sizes{.state_slots = 1, .operator_slots = 1, .pages = tokens / 16 + 1};
    const Pools pools(backend, machine.model.spec(), sizes);
    Placement to{.slot = 0};
    for (int32_t page = 0; page < sizes.pages; ++page) to.pages.push_back(page);
    const std::unique_ptr<SharedMemory> window = settings_.windows ? backend.share(window_bytes()) : nullptr;
    const StreamLayout layout(machine.model, tokens);
    std::vector<double> times;
    for (int repeat = 0; repeat < 5; ++repeat) {
      const auto start = Clock::now();
      for (size_t layer = 0; layer < layout.layers(); ++layer) {
        if (window) {
          enqueue_scatter(backend, pools, layout.sections(layer), window->data(), to);
          continue;
        }
        const std::vector<uint8_t> bytes(layout.part_size(layer));
        unpack(backend, pools, layout.sections(layer), bytes, to);
      }
      if (const auto event = backend.record()) event->wait();
      times.push_back(seconds(Clock::now() - start));
    }
    costs_.receive_byte = median(times) / bytes_of_residue(tokens);
  }

  Measured measure(int workers, Policy policy) {
    Measured cell{workers, policy, {}, 0, 0, 0, {}};
    Metrics metrics, worker_metrics;
    InProcessTransports local;
    TcpTransports tcp;
    Machine& combining = *machines_[0];
    CombineWorker combine(combining.engine, combining.model, worker_metrics,
                          {.mode = settings_.mode, .prompt_rows = settings_.rows},
                          {.bytes = int64_t{1} << 40,
                           .device_bytes = window_bytes(),
                           .first_patience = std::chrono::hours(1),
                           .patience = std::chrono::seconds(60)});
    combine.scheduler().wait_until_warm();
    std::string address = "combine";
    std::optional<TcpReceiver> receiver;
    if (settings_.tcp) {
      receiver.emplace(combine.sink(), "127.0.0.1", 0);
      address = str("127.0.0.1:", receiver->port());
    } else {
      local.add(address, combine.sink());
    }
    Transports& transports = settings_.tcp ? static_cast<Transports&>(tcp) : local;
    std::vector<std::unique_ptr<ScatterWorker>> scatter;
    for (int w = 1; w < workers; ++w)
      scatter.push_back(
          std::make_unique<ScatterWorker>(machines_[w]->engine, machines_[w]->model, transports, scattering()));
    std::vector<Phases> runs;
    for (int64_t repeat = 0; repeat < settings_.repeats + 1; ++repeat) {
      for (const auto& worker : scatter) worker->flush();
      combine.scheduler().flush();
      Router router(metrics, {.mode = settings_.mode, .policy = policy, .prefill_timeout = std::chrono::minutes(10)});
      std::mutex mutex;
      std::condition_variable changed;
      Phases phases;
      int64_t reports = 0;
      Tokens tokens;
      bool ended = false;
      router.up(router.add_combine("combine", std::make_shared<LocalCombine>(combine)),
                {.incarnation = 1, .address = address});
      const auto start = Clock::now();
      for (size_t w = 0; w < scatter.size(); ++w)
        router.up(
            router.add_scatter(str("scatter ", w + 1),
                               std::make_shared<Watched>(*scatter[w],
                                                         [&](const PrefillReport& report) {
                                                           const std::scoped_lock lock(mutex);
                                                           const double now = seconds(Clock::now() - start);
                                                           phases.arrived = std::max(phases.arrived, now);
                                                           phases.scatter = std::max(phases.scatter, now - report.sent);
                                                           phases.computed = std::max(phases.computed, report.computed);
                                                           phases.sent = std::max(phases.sent, report.sent);
                                                           for (const auto& segment : report.segments)
                                                             phases.failed = phases.failed || !segment.error.empty();
                                                           ++reports;
                                                           changed.notify_all();
                                                         })),
            {.incarnation = 1});
      router.submit(request_, [&](const Notice& notice) {
        const std::scoped_lock lock(mutex);
        if (notice.kind == Notice::Kind::token) tokens.push_back(notice.token);
        phases.failed = phases.failed || notice.kind == Notice::Kind::failed;
        phases.total = seconds(Clock::now() - start);
        ended = notice.last;
        changed.notify_all();
      });
      std::unique_lock lock(mutex);
      changed.wait(lock, [&] { return ended; });
      const RouterCounters counters = router.counters();
      cell.remote = std::max(cell.remote, counters.sent);
      if (tokens != expected_ || phases.failed || counters.recomputed > 0) ++cell.failed;
      if (repeat > 0) runs.push_back(phases);  // the first one does what happens once
      // Reports come after the last packet and may be behind the first token.
      changed.wait_for(lock, std::chrono::seconds(1), [&] { return reports >= static_cast<int64_t>(scatter.size()); });
    }
    cell.failed += combining.engine.restarts() > 0;
    const InboxCounters came = combine.inbox().counters();
    cell.host = came.complete - came.landed;
    for (double Phases::*part :
         {&Phases::scatter, &Phases::arrived, &Phases::total, &Phases::computed, &Phases::sent}) {
      std::vector<double> all;
      for (const Phases& run : runs) all.push_back(run.*part);
      cell.median.*part = median(all);
    }
    cell.simulated = simulate_cold(plan(workers, policy), costs_);
    return cell;
  }

  ColdPlan plan(int workers, Policy policy) const {
    ColdPlan plan;
    plan.segments = settings_.lengths;
    plan.question = settings_.question;
    plan.seam = settings_.mode.head + settings_.mode.tail;
    plan.layers = machines_[0]->model.spec().layer_count();
    const int64_t length = 1 << 16;
    plan.token_bytes = (bytes_of_residue(length) - bytes_of_residue(0)) / static_cast<double>(length);
    plan.residue_bytes = bytes_of_residue(0);
    plan.rows = settings_.rows;
    plan.workers = workers;
    plan.policy = policy;
    return plan;
  }

  void report(Result& result, const std::vector<Measured>& cells) const {
    constexpr double kMs = 1e3;
    result.verdict = Verdict::pass;
    Table measured{"Cold prompt by workers, ms",
                   {"workers", "policy", "first token", "× one worker", "scatter done", "longest computing",
                    "last residue sent", "sent by others", "simulated", "error"},
                   {}};
    double worst = 0;
    for (const Measured& cell : cells) {
      const auto alone = std::find_if(cells.begin(), cells.end(),
                                      [&](const Measured& c) { return c.workers == 1 && c.policy == cell.policy; });
      const double speedup = alone->median.total / cell.median.total;
      const double error = cell.simulated.total / cell.median.total - 1;
      worst = std::max(worst, std::abs(error));
      const std::string at = str(".m", cell.workers, ".", name_of(cell.policy));
      for (const auto& [tag, value, unit] : {std::tuple{"ttft", cell.median.total, "s"},
                                             {"speedup", speedup, "times"},
                                             {"scatter", cell.median.scatter, "s"},
                                             {"arrived", cell.median.arrived, "s"},
                                             {"simulated", cell.simulated.total, "s"},
                                             {"simulation_error", error, "relative"},
                                             {"failed", static_cast<double>(cell.failed), "repeats"},
                                             {"remote", static_cast<double>(cell.remote), "segments"},
                                             {"through_host", static_cast<double>(cell.host), "segments"}})
        result.values.push_back({str(tag, at), value, unit});
      const auto ms = [&](double x) { return Cell(x * kMs, Format::fixed, 2); };
      measured.rows.push_back({cell.workers, std::string(name_of(cell.policy)), ms(cell.median.total),
                               Cell(speedup, Format::fixed, 2), ms(cell.median.scatter), ms(cell.median.computed),
                               ms(cell.median.arrived), cell.remote, ms(cell.simulated.total),
                               Cell(error, Format::percent)});
    }
    result.values.push_back({"simulation_error_worst", worst, "relative"});

    Table simulated{"Simulated from one worker's costs, ms", {"workers"}, {}};
    for (const Policy policy : settings_.policies)
      for (const char* what : {"first token", "× one worker", "whole residues"})
        simulated.heads.push_back(str(name_of(policy), ", ", what));
    Chart chart{.title = "Cold prompt by workers",
                .x_label = "workers",
                .y_label = "times one worker",
                .log_y = true,
                .log_x = true};
    for (const Policy policy : settings_.policies)
      chart.series.push_back({str(name_of(policy), ", simulated"), {}, {}});
    for (const Policy policy : settings_.policies) chart.series.push_back({str(name_of(policy), ", measured"), {}, {}});
    for (int m = 1; m <= 64; m *= 2) {
      std::vector<Cell>& row = simulated.rows.emplace_back();
      row.push_back(m);
      for (size_t p = 0; p < settings_.policies.size(); ++p) {
        const Policy policy = settings_.policies[p];
        ColdPlan wanted = plan(m, policy);
        const double total = simulate_cold(wanted, costs_).total;
        const double speedup = simulate_cold(plan(1, policy), costs_).total / total;
        wanted.pipelined = false;
        row.push_back(Cell(total * kMs, Format::fixed, 2));
        row.push_back(Cell(speedup, Format::fixed, 2));
        row.push_back(Cell(simulate_cold(wanted, costs_).total * kMs, Format::fixed, 2));
        result.values.push_back({str("simulated_speedup.m", m, ".", name_of(policy)), speedup, "times"});
        chart.series[p].x.push_back(m);
        chart.series[p].y.push_back(speedup);
      }
    }
    for (const Measured& cell : cells) {
      const size_t p =
          std::find(settings_.policies.begin(), settings_.policies.end(), cell.policy) - settings_.policies.begin();
      const auto alone = std::find_if(cells.begin(), cells.end(),
                                      [&](const Measured& c) { return c.workers == 1 && c.policy == cell.policy; });
      chart.series[settings_.policies.size() + p].x.push_back(cell.workers);
      chart.series[settings_.policies.size() + p].y.push_back(alone->median.total / cell.median.total);
    }
    simulated.note = str("The simulation is off by ", std::round(worst * 1000) / 10,
                         " % at most where it was measured. Costs of one worker: a forward ", costs_.forward * kMs,
                         " ms and ", costs_.token * 1e6, " µs a row; ", costs_.send_byte * 1e9, " ns a byte sent and ",
                         costs_.receive_byte * 1e9, " put into place; ", costs_.request * kMs, " ms a request.");
    result.tables = {std::move(measured), std::move(simulated)};
    result.charts = {std::move(chart)};
    const auto [least, most] = std::minmax_element(settings_.lengths.begin(), settings_.lengths.end());
    result.note =
        str(machines_[0]->model.spec().name, " on ", settings_.model.backend, ": ", settings_.lengths.size(),
            " segments of ", *least, *least == *most ? "" : str(" to ", *most), " random tokens, ", settings_.question,
            " of question, all caches empty; medians of ", settings_.repeats, " after one more. Workers of one process",
            settings_.ranks > 1 ? str(", ", settings_.ranks, " tensor-parallel ranks each") : "", ", residues ",
            settings_.tcp       ? "over TCP from host memory to host memory"
            : settings_.windows ? "copied from device to device"
                                : "handed over in host memory",
            ". One worker combines and computes segments too.");
    if (settings_.model.backend.starts_with("cuda") && settings_.one_device)
      result.note += " All workers are on one GPU: times and the simulation mean nothing, answers do.";
    if (!settings_.model.backend.starts_with("cuda"))
      result.note +=
          " They share the cores of this machine, each using all of them: what is measured is no speedup, and "
          "the simulation, which gives each worker a machine of its own, must differ.";
  }

  Settings settings_;
  Request request_;
  std::vector<std::unique_ptr<Machine>> machines_;
  Tokens expected_;
  ColdCosts costs_;
};

}  // namespace

// A prompt of which nothing is cached, on workers of this process, a GPU each where there are GPUs. Parameters: model
// (random:qwen3.5-tiny), backend (cpu), mode (transition_rope_seam), segments (8) of tokens (64) or lengths (of each
// segment), question (16), rows (8192, of a forward), workers ([1, 2], the first must be 1), policies ([lpt,
// round_robin]), transport (in_process; or tcp), tensor_parallel (1, ranks of a worker, a GPU each), repeats (3).
// Values by cell .mWORKERS.POLICY: ttft, speedup (over one worker), scatter (until the last other worker has computed),
// arrived (until the last residue was sent), simulated, simulation_error (relative), failed (repeats whose token is
// another than one engine's or whose segments did not all come), remote (segments that others sent);
// simulation_error_worst; simulated_speedup.mWORKERS.POLICY up to 64.
Work prepare_cold(const SuiteCase& suite_case, const std::string& where, const DriverContext& context) {
  const auto run = std::make_shared<ColdRun>(suite_case, where, context);
  return [run](const ProgressFn& progress) { return run->run(progress); };
}

}  // namespace hypic
