#include "harness/cases/case.h"

#include <algorithm>
#include <cmath>
#include <condition_variable>
#include <cstdlib>
#include <iostream>
#include <mutex>
#include <numbers>
#include <thread>

#include "core/check.h"
#include "harness/cases/family_case.h"
#include "harness/cases/op_cases.h"

namespace hypic::conformance {
namespace {

constexpr size_t kMaxFailures = 4;  // lines kept of a case

// Ends the program where a case gives no answer.
class Watchdog {
 public:
  Watchdog(const std::string& name, int seconds)
      : thread_([this, name, seconds] {
          std::unique_lock lock(mutex_);
          if (done_.wait_for(lock, std::chrono::seconds(seconds), [this] { return finished_; }))
            return;
          std::cerr << "hypic: conformance: " << name << " hangs: no answer for " << seconds
                    << " s\n";
          std::_Exit(1);
        }) {}
  ~Watchdog() {
    {
      const std::lock_guard lock(mutex_);
      finished_ = true;
    }
    done_.notify_all();
    thread_.join();
  }

 private:
  std::mutex mutex_;
  std::condition_variable done_;
  bool finished_ = false;
  std::thread thread_;
};

}  // namespace

Context::Context(Backend& backend, const Settings& settings)
    : backend(backend), thorough(settings.thorough), tick_(settings.tick) {}

void Context::fail(std::string_view what, const std::string& why) {
  ++findings_.failed;
  if (findings_.failures.size() < kMaxFailures) findings_.failures.push_back(str(what, ": ", why));
}

void Context::compare(std::string_view what, const Array& got, const Array& want, int axis,
                      const std::vector<double>& bounds, const std::vector<double>& floors) {
  tick_();
  ++findings_.checks;
  if (got.shape != want.shape) return fail(what, "another shape");
  std::vector<double> least = floors.empty() ? std::vector<double>(bounds.size()) : floors;
  for (size_t i = 0; i < least.size(); ++i) {
    const double bound = bounds[bounds.size() == 1 ? 0 : i];
    least[i] = std::max(least[i], smallest_normal(state()) / bound);
  }
  const Comparison c = conformance::compare(got, want, axis, bounds, least);
  findings_.max_abs = std::max(findings_.max_abs, c.max_abs);
  findings_.cosine = std::min(findings_.cosine, c.cosine);
  const auto share = [](const Comparison& x) { return x.bound > 0 ? x.rms / x.bound : 0; };
  if (findings_.worst.bound == 0 || share(c) > share(findings_.worst)) findings_.worst = c;
  if (!c.wrong.empty()) fail(what, c.wrong);
}

void Context::compare(std::string_view what, const Array& got, const Array& want, int axis) {
  compare(what, got, want, axis, {tolerance(compute())});
}

void Context::same(std::string_view what, const Array& got, const Array& want, int axis,
                   const std::vector<double>& floors) {
  batch_invariant() ? identical(what, got, want) : compare(what, got, want, axis, {tolerance(compute())}, floors);
}

void Context::identical(std::string_view what, const Array& got, const Array& want) {
  tick_();
  ++findings_.checks;
  const std::string difference = first_difference(got, want);
  if (!difference.empty()) fail(what, difference);
}

void Context::unharmed(std::string_view what, const Arena& arena) {
  ++findings_.checks;
  for (const std::string& line : arena.violations()) fail(what, line);
}

void Context::expect(bool holds, std::string_view what, std::string_view why) {
  tick_();
  ++findings_.checks;
  if (!holds) fail(what, std::string(why));
}

const std::vector<Case>& all_cases() {
  static const std::vector<Case> all = [] {
    std::vector<Case> cases = family_cases();
    for (const auto& group : kOpCases)
      for (Case& c : group()) cases.push_back(std::move(c));
    return cases;
  }();
  return all;
}

std::vector<std::string> operations() {
  std::vector<std::string> names;
  for (const Case& c : all_cases())
    if (std::find(names.begin(), names.end(), c.op) == names.end()) names.push_back(c.op);
  return names;
}

Findings run_case(const Case& c, Backend& backend, const Settings& settings) {
  const Watchdog watchdog(c.name, settings.patience);
  Context context(backend, settings);
  std::string thrown;
  try {
    c.run(context);
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception& error) {
    thrown = error.what();
  }
  Findings findings = context.findings();
  if (!thrown.empty()) {
    ++findings.checks;
    ++findings.failed;
    findings.failures.insert(findings.failures.begin(), "threw: " + thrown);
  }
  return findings;
}

double Draw::uniform(double low, double high) {
  return low + (high - low) * (static_cast<double>(bits_() >> 11) * 0x1p-53);
}

double Draw::normal() {
  const double radius = std::sqrt(-2 * std::log(1 - uniform(0, 1)));
  return radius * std::cos(2 * std::numbers::pi * uniform(0, 1));
}

int64_t Draw::integer(int64_t low, int64_t high) {
  return low + static_cast<int64_t>(bits_() % static_cast<uint64_t>(high - low + 1));
}

Array Draw::normals(std::vector<int64_t> shape, double scale) {
  Array x(std::move(shape));
  for (double& element : x.data) element = scale * normal();
  return x;
}

Array Trial::normals(std::vector<int64_t> shape, double scale) {
  return rounded(draw_.normals(std::move(shape), scale), context_.compute());
}

Tensor Trial::input(const std::string& name, const Array& values, int64_t gap) {
  return arena_.input(name, values, context_.compute(), gap);
}

Tensor Trial::index(const std::string& name, const std::vector<int32_t>& values) {
  return arena_.index(name, values);
}

Tensor Trial::output(const std::string& name, std::initializer_list<int64_t> shape, int64_t gap) {
  return arena_.output(name, shape, context_.compute(), gap);
}

Tensor Trial::inout(const std::string& name, const Array& values, int64_t gap) {
  return arena_.inout(name, values, context_.compute(), gap);
}

Tensor Trial::index_output(const std::string& name, std::initializer_list<int64_t> shape) {
  return arena_.output(name, shape, DType::i32);
}

Tensor Trial::gate_inout(const std::string& name, const Array& values) {
  return arena_.inout(name, values, context_.state());
}
Tensor Trial::gate_input(const std::string& name, const Array& values) {
  return arena_.input(name, values, context_.state());
}

Tensor Trial::gate_output(const std::string& name, std::initializer_list<int64_t> shape,
                          int64_t gap) {
  return arena_.output(name, shape, context_.state(), gap);
}

void Trial::call(const std::function<void(Backend&)>& operation) { operation(context_.backend); }

void Trial::compare(std::string_view what, const Tensor& got, const Array& want,
                    const std::vector<double>& floors) {
  context_.compare(what, arena_.read(got), want, 0, {tolerance(context_.compute())}, floors);
  context_.unharmed(what, arena_);
}

void Trial::identical(std::string_view what, const Tensor& got, const Array& want) {
  context_.identical(what, arena_.read(got), want);
  context_.unharmed(what, arena_);
}

}  // namespace hypic::conformance
