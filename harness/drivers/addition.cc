#include <cmath>

#include "core/check.h"
#include "harness/driver.h"
#include "reference/laws.h"

namespace hypic {

namespace {

Result run(const std::vector<int64_t>& exponents, const std::vector<int64_t>& lengths,
           const ProgressFn& progress) {
  Result result;
  result.verdict = Verdict::pass;
  Table table{"‖S_add − S‖ / ‖S₁‖ of RetNet over two segments", {"γ"}, {}};
  for (const int64_t L : lengths) table.heads.push_back(str("L = ", L));
  Chart chart;
  chart.title = "Naive addition loses what the first segment should have forgotten";
  chart.x_label = "tokens a segment";
  chart.y_label = "relative error";
  for (size_t i = 0; i < exponents.size(); ++i) {
    const int64_t e = exponents[i];
    progress(static_cast<double>(i) / exponents.size(), str("γ = 1 − 2^−", e));
    const double gamma = 1 - std::exp2(-static_cast<double>(e));
    std::vector<Cell> row = {str("1 − 2^−", e)};
    Series series{str("γ = 1 − 2^−", e), {}, {}};
    for (const int64_t L : lengths) {
      const double measured = reference::retnet_addition_error(gamma, L);
      const double closed = 1 - std::pow(gamma, static_cast<double>(L));
      result.values.push_back({str("measured.e", e, ".", L), measured, "relative"});
      result.values.push_back(
          {str("difference.e", e, ".", L), std::abs(measured - closed), "relative"});
      row.emplace_back(measured, Format::fixed, 3);
      series.x.push_back(static_cast<double>(L));
      series.y.push_back(measured);
    }
    table.rows.push_back(std::move(row));
    chart.series.push_back(std::move(series));
  }
  result.tables.push_back(std::move(table));
  result.charts.push_back(std::move(chart));
  return result;
}

}  // namespace

// RetNet, two segments of L tokens, γ = 1 − 2^−e: the error of adding the states that each leaves from zero,
// relative to the first segment's state.
// Parameters: exponents ([5, 7, 10]), lengths ([256, 512, 1024]).
// Values: measured.eE.L, difference.eE.L from the closed form 1 − γ^L.
Work prepare_addition(const SuiteCase& suite_case, const std::string& where, const DriverContext&) {
  Parameters parameters(suite_case.parameters, where + ".parameters");
  const auto exponents = parameters.integers("exponents", {5, 7, 10}, 1, 40);
  const auto lengths = parameters.integers("lengths", {256, 512, 1024}, 1, 65536);
  parameters.refuse_others();
  return [=](const ProgressFn& progress) { return run(exponents, lengths, progress); };
}

}  // namespace hypic
