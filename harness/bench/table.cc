#include "harness/bench/table.h"

#include "core/check.h"

namespace hypic::bench {

Report to_report(const std::vector<Measured>& all, const Ceilings& ceilings,
                 Environment environment) {
  Table table{
      "",
      {"name", "ms (median)", "min", "max", "runs", "GB/s", "TFLOP/s", "of limit", "kernels"},
      {}};
  Result result{.name = "kernels", .driver = "bench", .verdict = Verdict::pass};
  int64_t failed = 0;
  for (const Measured& m : all) {
    if (!m.failure.empty()) {
      table.rows.push_back({Cell(m.name, Mark::bad), "", "", "", "", "", "", "", m.failure});
      if (failed++ == 0) result.why = str(m.name, ": ", m.failure);
      continue;
    }
    const double seconds = median(m.seconds);
    const auto rate = [&](double amount, double unit) {
      return amount > 0 ? Cell(amount / seconds / unit) : Cell("–");
    };
    table.rows.push_back({m.name, seconds * 1e3, m.seconds.front() * 1e3, m.seconds.back() * 1e3,
                          m.seconds.size(), rate(m.cost.bytes, 1e9), rate(m.cost.operations, 1e12),
                          Cell(limit_seconds(m.cost, ceilings) / seconds, Format::percent, 0),
                          m.kernels});
    for (const double each : m.seconds) result.seconds += each;
  }
  if (failed > 0) {
    result.verdict = Verdict::fail;
    if (failed > 1) result.why += str(" (", failed, " benchmarks fail)");
  }
  result.tables.push_back(std::move(table));
  return {.title = "hypic-bench",
          .description =
              "Times are of single operations, medians of replays; docs/benchmarks.md says how to "
              "read them.",
          .environment = std::move(environment),
          .results = {std::move(result)}};
}

}  // namespace hypic::bench
