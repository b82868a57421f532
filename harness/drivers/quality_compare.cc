#include "harness/drivers/quality_compare.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <tuple>

#include "core/check.h"
#include "reports/text.h"

namespace hypic::quality {
namespace {

constexpr size_t kShown = 50;  // outputs that differ, the least explained first

using Where = std::tuple<std::string, std::string, std::string>;  // model, cell, mode
using Key = std::pair<Where, std::string>;                        // and item

std::map<Key, const Row*> by_key(const std::vector<Row>& rows) {
  std::map<Key, const Row*> all;
  for (const Row& row : rows)
    all[{{row.model, row.cell, row.mode}, row.id}] = &row;  // the last one counts, as for a resume
  return all;
}

struct Difference {
  const Row *a, *b;
  size_t at;      // the first token that differs
  double gap;     // of a and of b at it, together
  double excess;  // the same over what is allowed
};

Difference difference_of(const Row& a, const Row& b) {
  const size_t at =
      std::mismatch(a.tokens.begin(), a.tokens.end(), b.tokens.begin(), b.tokens.end()).first - a.tokens.begin();
  Difference d{&a, &b, at, std::numeric_limits<double>::infinity(), std::numeric_limits<double>::infinity()};
  if (at >= std::min(a.tokens.size(), b.tokens.size())) return d;  // one says more: no rounding does that
  d.gap = a.gaps[at] + b.gaps[at];
  if (std::isnan(d.gap)) d.gap = d.excess;  // a lead that is not finite
  d.excess = d.gap / (2 * std::max(a.allowed, b.allowed));
  return d;
}

}  // namespace

Result compare(const std::vector<Row>& a, const std::vector<Row>& b) {
  const std::map<Key, const Row*> of_a = by_key(a), of_b = by_key(b);
  struct Count {
    int64_t all = 0, same = 0, explained = 0;
    double widest = 0;  // gap of those that differ
  };
  std::map<Where, Count> counts;
  std::vector<Difference> differences;
  Count total;
  for (const auto& [key, row] : of_a) {
    const auto other = of_b.find(key);
    if (other == of_b.end()) continue;
    Count& count = counts[key.first];
    ++count.all;
    if (row->tokens == other->second->tokens) {
      ++count.same;
      continue;
    }
    differences.push_back(difference_of(*row, *other->second));
    count.explained += differences.back().excess <= 1;
    count.widest = std::max(count.widest, differences.back().gap);
  }
  require(!counts.empty(), "the two runs have no item in common: other models, cells, seeds or modes");
  Result result;
  result.name = "comparison";
  result.driver = "quality";
  Table table{"Outputs of two runs",
              {"model", "cell", "mode", "items", "same output", "others explained", "not explained", "widest gap"},
              {}};
  for (const auto& [where, count] : counts) {
    const int64_t others = count.all - count.same;
    table.rows.push_back({std::get<0>(where), std::get<1>(where), std::get<2>(where), count.all,
                          Cell(static_cast<double>(count.same) / static_cast<double>(count.all), Format::percent, 1),
                          count.explained, others - count.explained, others > 0 ? Cell(count.widest) : Cell("–")});
    total.all += count.all;
    total.same += count.same;
    total.explained += count.explained;
  }
  std::stable_sort(differences.begin(), differences.end(),
                   [](const Difference& x, const Difference& y) { return x.excess > y.excess; });
  Table which{"Outputs that differ",
              {"model", "cell", "mode", "item", "first token", "gaps", "allowed", "over allowed", "a", "b"},
              {}};
  for (const Difference& d : differences) {
    if (which.rows.size() == kShown) break;
    which.rows.push_back({d.a->model, d.a->cell, d.a->mode, d.a->id, static_cast<int64_t>(d.at), Cell(d.gap),
                          Cell(2 * std::max(d.a->allowed, d.b->allowed)), Cell(d.excess), d.a->output, d.b->output});
  }
  const int64_t unexplained = total.all - total.same - total.explained;
  const double same = static_cast<double>(total.same) / static_cast<double>(total.all);
  result.values = {{"compared", static_cast<double>(total.all), "outputs"},
                   {"same", same, "share"},
                   {"explained", static_cast<double>(total.explained), "outputs"},
                   {"unexplained", static_cast<double>(unexplained), "outputs"}};
  result.verdict = same >= kSameOutputs && unexplained == 0 ? Verdict::pass : Verdict::fail;
  result.why = str(total.same, " of ", total.all, " outputs are the same (", format_number(same, Format::percent, 2),
                   ", ", format_number(kSameOutputs, Format::percent, 0), " are asked for); of the others ",
                   total.explained, " are explained by their top-two gaps, ", unexplained, " not");
  const int64_t only_a = static_cast<int64_t>(of_a.size()) - total.all,
                only_b = static_cast<int64_t>(of_b.size()) - total.all;
  if (only_a + only_b > 0)
    result.why += str("; not compared: ", only_a, " of the first run alone, ", only_b, " of the second alone");
  table.note =
      "Explained: at the first token that differs the leads of both runs' choices together are no more than two logits "
      "may move on another backend.";
  result.tables = {std::move(table)};
  if (!which.rows.empty()) result.tables.push_back(std::move(which));
  return result;
}

}  // namespace hypic::quality
