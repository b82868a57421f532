// RMS and L2 norms.
#include "core/check.h"
#include "harness/cases/op_cases.h"
#include "harness/cases/oracle.h"

namespace hypic::conformance {
namespace {

void rms_norm(Context& c) {
  for (const bool plus_one : {false, true})
    for (const int64_t R : {0, 1, 33})
      for (const int64_t N : {1, 63, 128, 2048}) {
        Trial t(c, 41 + N);
        const Array x = t.normals({R, N}), w = t.normals({N}, 0.5);
        const Tensor out = t.output("out", {R, N});
        t.call([&](Backend& b) {
          b.rms_norm({.x = t.input("x", x),
                      .weight = t.input("weight", w),
                      .plus_one = plus_one,
                      .eps = 1e-6,
                      .out = out});
        });
        t.compare(str(R, " × ", N, plus_one ? ", 1 + weight" : ""), out,
                  oracle::rms_norm(x, w, plus_one, 1e-6));
      }
  Trial t(c, 47);
  const Array x = t.normals({70000, 4}), w = t.normals({4});
  const Tensor out = t.output("out", {70000, 4});
  t.call([&](Backend& b) {
    b.rms_norm({.x = t.input("x", x), .weight = t.input("weight", w), .plus_one = false, .eps = 1e-6, .out = out});
  });
  t.compare("70000 × 4", out, oracle::rms_norm(x, w, false, 1e-6));
}

void rms_heads(Context& c) {
  for (const bool of_each_head : {false, true}) {
    Trial t(c, 43);
    const Array x = t.normals({7, 3, 24}), w = of_each_head ? t.normals({3, 24}) : t.normals({24});
    const Tensor out = t.output("out", {7, 3, 24}, 5);
    t.call([&](Backend& b) {
      b.rms_norm({.x = t.input("x", x, 11),
                  .weight = t.input("weight", w),
                  .plus_one = false,
                  .eps = 1e-6,
                  .out = out});
    });
    t.compare(of_each_head ? "rows apart, weight of each head" : "rows apart", out,
              oracle::rms_norm(x, w, false, 1e-6));
  }
}

// eps counts where the row is small.
void rms_eps(Context& c) {
  Trial t(c, 44);
  Array x = t.normals({5, 64}, 1e-3);
  for (int64_t i = 0; i < 64; ++i) x(2, i) = 0;
  const Array w = t.normals({64});
  const Tensor out = t.output("out", {5, 64});
  t.call([&](Backend& b) {
    b.rms_norm({.x = t.input("x", x),
                .weight = t.input("weight", w),
                .plus_one = false,
                .eps = 1e-5,
                .out = out});
  });
  t.compare("small rows and a zero row", out, oracle::rms_norm(x, w, false, 1e-5));
}

void l2_norm(Context& c) {
  for (const int64_t R : {0, 1, 33})
    for (const int64_t D : {1, 64, 100, 128}) {
      Trial t(c, 45 + D);
      const Array x = t.normals({R, 3, D});
      const Tensor out = t.output("out", {R, 3, D}, 3);
      t.call([&](Backend& b) { b.l2_norm({.x = t.input("x", x, 7), .eps = 1e-6, .out = out}); });
      t.compare(str(R, " × ", D), out, oracle::l2_norm(x, 1e-6));
    }
}

// Fault 14: eps added to the mean, not to the sum, is 128 times as much; a zero row is zero.
void fault_l2_eps(Context& c) {
  Trial t(c, 46);
  Array x = t.normals({4, 2, 128}, 1e-4);
  for (int64_t i = 0; i < 128; ++i) x(1, 0, i) = 0;
  const Tensor out = t.output("out", {4, 2, 128});
  t.call([&](Backend& b) { b.l2_norm({.x = t.input("x", x), .eps = 1e-6, .out = out}); });
  t.compare("rows of 1e-4, eps 1e-6", out, oracle::l2_norm(x, 1e-6));
}

}  // namespace

std::vector<Case> norm_cases() {
  return {{"rms_norm/sizes", "rms_norm", "", rms_norm},
          {"rms_norm/heads", "rms_norm", "", rms_heads},
          {"rms_norm/eps", "rms_norm", "", rms_eps},
          {"l2_norm/sizes", "l2_norm", "", l2_norm},
          {"l2_norm/fault_14_eps", "l2_norm", "", fault_l2_eps}};
}

}  // namespace hypic::conformance
