// Rotary embedding.
#include "core/check.h"
#include "harness/cases/op_cases.h"
#include "harness/cases/oracle.h"

namespace hypic::conformance {
namespace {

void run(Context& c, int64_t R, int64_t first_position, int64_t D, int rotary_dim, double theta,
         int64_t gap) {
  Trial t(c, 31);
  const Array x = t.normals({R, 3, D});
  std::vector<int32_t> positions(R);
  for (int64_t r = 0; r < R; ++r) positions[r] = static_cast<int32_t>(first_position + 3 * r);
  const Tensor out = t.output("out", {R, 3, D}, gap);
  t.call([&](Backend& b) {
    b.rope({.x = t.input("x", x, gap),
            .positions = t.index("positions", positions),
            .rotary_dim = rotary_dim,
            .theta = theta,
            .out = out});
  });
  t.compare(str(R, " rows from position ", first_position, ", ", rotary_dim, " of ", D), out,
            oracle::rope(x, positions, rotary_dim, theta));
}

void positions(Context& c) {
  for (const int64_t first : {0, 1, 1000, 32768, 262144}) run(c, 5, first, 64, 64, 1e7, 0);
}

void partial(Context& c) {
  for (const auto& [D, rotary] : {std::pair{256, 64}, {80, 20}, {6, 2}, {8, 8}})
    for (const int64_t R : {0, 1, 33}) run(c, R, 7, D, rotary, 1e4, 0);
}

void strided(Context& c) { run(c, 33, 7, 64, 32, 1e4, 9); }

void in_place(Context& c) {
  Trial t(c, 32);
  const Array x = t.normals({9, 2, 16});
  const std::vector<int32_t> positions = {0, 1, 2, 5, 9, 100, 101, 5000, 32767};
  const Tensor y = t.inout("x", x);
  t.call([&](Backend& b) {
    b.rope({.x = y,
            .positions = t.index("positions", positions),
            .rotary_dim = 8,
            .theta = 1e4,
            .out = y});
  });
  t.compare("out is x", y, oracle::rope(x, positions, 8, 1e4));
}

}  // namespace

std::vector<Case> rope_cases() {
  return {{"rope/positions", "rope", "", positions},
          {"rope/partial", "rope", "", partial},
          {"rope/strided", "rope", "", strided},
          {"rope/in_place", "rope", "", in_place}};
}

}  // namespace hypic::conformance
