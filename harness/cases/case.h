// A case of the conformance suite: it runs operations of a backend and holds what they give against
// an oracle in float64. Cases of a linear-attention family stand in NAME.cc, those of another
// operation in OP.cc.
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "core/backend.h"
#include "harness/cases/arena.h"
#include "harness/cases/compare.h"

namespace hypic::conformance {

// What a case found.
struct Findings {
  int64_t checks = 0;
  Comparison worst;    // the comparison with the largest rms / bound
  double max_abs = 0;  // over all comparisons
  double cosine = 1;
  std::vector<std::string> failures;  // one line each, the first ones
  int64_t failed = 0;                 // of the checks
};

struct Settings {
  bool thorough = false;               // the exact sizes of the reports, and more repeats
  std::function<void()> tick = [] {};  // called at every check; may throw to stop
  int patience = 300;                  // seconds after which a case counts as hanging
};

// What a case is given: the backend, and where its checks go.
class Context {
 public:
  Context(Backend& backend, const Settings& settings);

  Backend& backend;
  const bool thorough;

  DType compute() const { return backend.compute_dtype(); }
  DType state() const { return backend.state_dtype(); }
  // Whether the backend promises a row the same bits alone and in any batch or split.
  bool batch_invariant() const { return backend.batch_invariant(); }

  void compare(std::string_view what, const Array& got, const Array& want, int axis,
               const std::vector<double>& bounds, const std::vector<double>& floors = {});
  // With the tolerance of the compute dtype.
  void compare(std::string_view what, const Array& got, const Array& want, int axis = -1);
  // Two runs that must agree: in their bits where the backend is batch-invariant, else within the
  // tolerance.
  void same(std::string_view what, const Array& got, const Array& want, int axis = -1,
            const std::vector<double>& floors = {});
  void identical(std::string_view what, const Array& got, const Array& want);
  void unharmed(std::string_view what, const Arena& arena);
  void expect(bool holds, std::string_view what, std::string_view why);

  const Findings& findings() const { return findings_; }

 private:
  void fail(std::string_view what, const std::string& why);

  std::function<void()> tick_;
  Findings findings_;
};

struct Case {
  std::string name;    // "gated_delta_net/lengths", "rope/positions"
  std::string op;      // the operation it is about
  std::string family;  // of linear_attention
  std::function<void(Context&)> run;
};

// Every case: the families in the order of families.def, then the other operations.
const std::vector<Case>& all_cases();
// The operations that have cases, in order.
std::vector<std::string> operations();

// Throws only what settings.tick does, and bad_alloc: an exception of the backend is a failure of
// the case. A case that gives no answer within settings.patience ends the program with one line,
// for nothing else can end a kernel that hangs.
Findings run_case(const Case& c, Backend& backend, const Settings& settings);

// Random numbers, the same on every platform.
class Draw {
 public:
  explicit Draw(uint64_t seed) : bits_(seed) {}
  double uniform(double low, double high);
  double normal();
  int64_t integer(int64_t low, int64_t high);
  Array normals(std::vector<int64_t> shape, double scale = 1);

 private:
  std::mt19937_64 bits_;
};

// One operation outside the families: its tensors, the call and its comparisons.
//   Trial t(context, 7);
//   const Array x = t.normals({R, N});
//   const Tensor out = t.output("out", {R, N});
//   t.call([&](Backend& b) { b.sigmoid({.x = t.input("x", x), .out = out}); });
//   t.compare("rows of 33", out, want);
class Trial {
 public:
  Trial(Context& context, uint64_t seed)
      : context_(context), arena_(context.backend), draw_(seed) {}

  // As the compute dtype holds them.
  Array normals(std::vector<int64_t> shape, double scale = 1);
  Draw& draw() { return draw_; }

  Tensor input(const std::string& name, const Array& values, int64_t gap = 0);
  Tensor index(const std::string& name, const std::vector<int32_t>& values);
  Tensor output(const std::string& name, std::initializer_list<int64_t> shape, int64_t gap = 0);
  Tensor inout(const std::string& name, const Array& values, int64_t gap = 0);
  Tensor index_output(const std::string& name, std::initializer_list<int64_t> shape);
  // With the state dtype.
  Tensor gate_input(const std::string& name, const Array& values);
  Tensor gate_output(const std::string& name, std::initializer_list<int64_t> shape,
                     int64_t gap = 0);
  Tensor gate_inout(const std::string& name, const Array& values);

  void call(const std::function<void(Backend&)>& operation);

  Array read(const Tensor& tensor) const { return arena_.read(tensor); }
  // Groups are rows; the canaries are looked at as well.
  void compare(std::string_view what, const Tensor& got, const Array& want,
               const std::vector<double>& floors = {});
  // For indices; the canaries too.
  void identical(std::string_view what, const Tensor& got, const Array& want);

 private:
  Context& context_;
  Arena arena_;
  Draw draw_;
};

}  // namespace hypic::conformance
