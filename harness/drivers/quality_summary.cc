#include "harness/drivers/quality_summary.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "core/check.h"
#include "harness/drivers/quality_charts.h"
#include "harness/measure/bootstrap.h"
#include "reports/text.h"

namespace hypic::quality {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kShortest = 0.9, kLongest = 1.1;  // of full recompute's output length (MLPerf's band)
constexpr const char* kDefaultMode = "transition_rope_seam";

double mean(const std::vector<Row>& rows, const std::function<double(const Row&)>& of) {
  double sum = 0;
  for (const Row& row : rows) sum += of(row);
  return sum / static_cast<double>(rows.size());
}

std::vector<double> points(const std::vector<Row>& rows) {
  std::vector<double> all;
  for (const Row& row : rows) all.push_back(100 * row.score);
  return all;
}

double average(const std::vector<double>& x) {
  double sum = 0;
  for (const double value : x) sum += value;
  return sum / static_cast<double>(x.size());
}

std::vector<double> less(const std::vector<double>& x, const std::vector<double>& y) {
  std::vector<double> all;
  for (size_t i = 0; i < x.size(); ++i) all.push_back(x[i] - y[i]);
  return all;
}

double length(const Row& row) { return static_cast<double>(row.tokens.size()); }

using Shown = hypic::Cell;  // of a table

Shown in_points(double x) { return std::isnan(x) ? Shown("–") : Shown(x, Format::fixed, 1); }
Shown share(double x) { return std::isnan(x) ? Shown("–") : Shown(x, Format::percent, 1); }

Shown between(const Shown& low, const Shown& high) {
  return cell_text(low) == "–" ? low : Shown(str(cell_text(low), " – ", cell_text(high)));
}

// The mean over layers that have a state; NaN without one.
double over_layers(const std::vector<double>& errors) {
  std::vector<double> there;
  for (const double error : errors)
    if (!std::isnan(error)) there.push_back(error);
  return there.empty() ? kNan : average(there);
}

class Summary {
 public:
  Summary(const std::vector<std::string>& modes, const Scored& scored, uint64_t seed)
      : modes_(modes), scored_(scored), seed_(seed) {
    result_.verdict = Verdict::pass;
    for (const std::string& mode : modes) chart_.categories.push_back(mode);
  }

  void add(const Cell& cell, const CellRows& rows, const StateErrors& states) {
    const std::vector<Row>&full = rows.at("full"), &again = rows.at(kAgain), &floor = rows.at(kFloor);
    const std::vector<double> full_points = points(full), floor_points = points(floor);
    const double top = average(full_points), bottom = average(floor_points);
    const double same = mean(again, [](const Row& r) { return r.same_output; });
    const bool counts = top >= scored_.from && static_cast<int64_t>(full.size()) >= scored_.rows;
    kinds_[cell.kind()] |= counts;
    const std::string label = cell.label();
    value(str("n.", label), static_cast<double>(full.size()), "items");
    value(str("full.", label), top, "points");
    value(str("floor.", label), bottom, "points");
    value(str("noise.", label), same, "share");
    double longest = 0;
    for (const Row& row : full) longest = std::max(longest, static_cast<double>(row.total));
    cells_.rows.push_back(
        {label, static_cast<int64_t>(full.size()),
         Shown(mean(full, [](const Row& r) { return static_cast<double>(r.total); }), Format::fixed, 0),
         Shown(longest, Format::integer), Shown(mean(full, length), Format::fixed, 1), in_points(top),
         in_points(bottom), counts ? "yes" : "no", share(same),
         share(mean(again, [](const Row& r) { return r.same_bits; }))});
    Series line{label, {}, {}};
    for (const std::string& mode : modes_) {
      const std::vector<Row>& of = rows.at(mode);
      const std::vector<double> mode_points = points(of), lost = less(full_points, mode_points);
      if (counts) {
        losses_[mode].push_back(lost);
        for (const Row& row : of) reused_[mode].total += row.total, reused_[mode].computed += row.computed;
      }
      const bool enough = std::ssize(lost) >= kSamplesForInterval;
      const Interval none{kNan, kNan}, lost_in = enough ? mean_interval({&lost, 1}, seed_) : none;
      const double kept = top > bottom ? (average(mode_points) - bottom) / (top - bottom) : kNan;
      const Interval kept_in = enough ? recovered_interval(mode_points, floor_points, full_points, seed_) : none;
      const auto put = [&](const char* tag, double x, const char* unit) {
        value(str(tag, ".", label, ".", mode), x, unit);
      };
      put("score", average(mode_points), "points");
      put("loss", average(lost), "points");
      put("loss_low", lost_in.low, "points");
      put("loss_high", lost_in.high, "points");
      put("recovered", kept, "share");
      put("recovered_low", kept_in.low, "share");
      put("recovered_high", kept_in.high, "share");
      const double equal = mean(of, [](const Row&r) { return r.same_output; }),
                   first = mean(of, [](const Row&r) { return r.same_first; }),
                   kl = mean(of, [](const Row&r) { return r.kl; }), ratio = mean(of, length) / mean(full, length),
                   reused = 1 - mean(of, [](const Row&r) { return static_cast<double>(r.computed); }) /
                                    mean(of, [](const Row&r) { return static_cast<double>(r.total); });
      put("same", equal, "share");
      same_[mode].push_back(equal);
      put("top1", first, "share");
      put("kl", kl, "nats");
      put("length", ratio, "times");
      put("reused", reused, "share");
      scores_.rows.push_back(
          {label, mode, in_points(average(mode_points)), in_points(average(lost)),
           between(in_points(lost_in.low), in_points(lost_in.high)), share(kept),
           between(share(kept_in.low), share(kept_in.high)), share(equal), share(first), Shown(kl),
           Shown(ratio, Format::fixed, 2, kShortest <= ratio && ratio <= kLongest ? Mark::none : Mark::bad),
           share(reused)});
      line.y.push_back(average(lost));
      if (const auto found = states.find(mode); found != states.end())
        add_states(label, mode, found->second, average(lost));
    }
    chart_.series.push_back(std::move(line));
    if (!states.empty()) charts_.push_back(std::move(layers_));
    layers_ = {};
  }

  Result take(const std::vector<Cell>& cells) {
    int64_t scored = 0;
    for (const auto& [kind, counts] : kinds_) {
      value(str("scored.", kind), counts, "");
      scored += counts;
    }
    value("scored", static_cast<double>(scored), "kinds");
    Table all{"Over the scored cells", {"mode", "loss, points", "95 %", "tokens reused"}, {}};
    for (const std::string& mode : modes_) {
      const auto found = losses_.find(mode);
      std::vector<double> means;
      if (found != losses_.end())
        for (const std::vector<double>& lost : found->second) means.push_back(average(lost));
      const double loss = means.empty() ? kNan : average(means);
      const auto few = [](const std::vector<double>& lost) { return std::ssize(lost) < kSamplesForInterval; };
      const Interval in = means.empty() || std::any_of(found->second.begin(), found->second.end(), few)
                              ? Interval{kNan, kNan}
                              : mean_interval(found->second, seed_);
      const TokenSums tokens = reused_[mode];
      const double reused =
          means.empty() ? kNan : 1 - static_cast<double>(tokens.computed) / static_cast<double>(tokens.total);
      value(str("loss_scored.", mode), loss, "points");
      value(str("loss_scored_low.", mode), in.low, "points");
      value(str("loss_scored_high.", mode), in.high, "points");
      value(str("reused_scored.", mode), reused, "share");
      all.rows.push_back({mode, in_points(loss), between(in_points(in.low), in_points(in.high)), share(reused)});
    }
    const bool with_default = std::find(modes_.begin(), modes_.end(), kDefaultMode) != modes_.end();
    const std::string shown = with_default ? kDefaultMode : modes_.back();
    const double loss = number(str("loss_scored.", shown));
    result_.why = scored == 0 ? str("none of ", kinds_.size(), kinds_.size() == 1 ? " kind" : " kinds", " is scored; ",
                                    shown, " gives the same output in ", cell_text(share(average(same_.at(shown)))))
                              : str(scored, " of ", kinds_.size(), kinds_.size() == 1 ? " kind" : " kinds", " scored; ",
                                    shown, " loses ", cell_text(in_points(loss)), " points");
    all.note = str("Means over the cells that are scored: full recompute has at least ", format_number(scored_.from),
                   " points over at least ", scored_.rows, " items.");
    result_.tables = {std::move(scores_), std::move(cells_)};
    if (scored > 0) result_.tables.push_back(std::move(all));
    if (!states_.rows.empty()) result_.tables.push_back(std::move(states_));
    result_.charts = {std::move(chart_)};
    for (Chart& chart : charts_over(cells, modes_, result_.values)) result_.charts.push_back(std::move(chart));
    for (Chart& chart : charts_) result_.charts.push_back(std::move(chart));
    return std::move(result_);
  }

 private:
  struct TokenSums {
    int64_t total = 0, computed = 0;
  };

  void value(const std::string& tag, double x, const char* unit) { result_.values.push_back({tag, x, unit}); }

  double number(const std::string& tag) const {
    for (const Value& v : result_.values)
      if (v.tag == tag) return v.value;
    return kNan;
  }

  void add_states(const std::string& label, const std::string& mode, const std::vector<double>& errors, double lost) {
    Series line{mode, {}, {}};
    double first = kNan, last = kNan;
    for (size_t l = 0; l < errors.size(); ++l) {
      if (std::isnan(errors[l])) continue;
      value(str("state.", label, ".", mode, ".layer_", l < 10 ? "0" : "", l), errors[l], "relative");
      line.x.push_back(static_cast<double>(l));
      line.y.push_back(errors[l]);
      if (std::isnan(first)) first = errors[l];
      last = errors[l];
    }
    if (line.x.empty()) return;
    states_.rows.push_back({label, mode, Shown(first, Format::scientific), Shown(over_layers(errors), Format::fixed, 3),
                            Shown(last, Format::fixed, 3), in_points(lost)});
    layers_.title = str("State before the question, ", label);
    layers_.x_label = "linear-attention layer";
    layers_.y_label = "relative error from full recompute (log)";
    layers_.log_y = true;
    layers_.series.push_back(std::move(line));
  }

  const std::vector<std::string>& modes_;
  const Scored scored_;
  const uint64_t seed_;
  Result result_;
  std::map<std::string, bool> kinds_;
  std::map<std::string, std::vector<std::vector<double>>> losses_;  // by mode, of each scored cell
  std::map<std::string, TokenSums> reused_;
  std::map<std::string, std::vector<double>> same_;  // by mode, of each cell
  Table scores_{kScores,
                {"cell", "mode", "score", "loss, points", "95 %", "gap recovered", "95 %", "same output", "top-1",
                 "KL, nats", "length", "tokens reused"},
                {}};
  Table cells_{"Cells",
               {"cell", "items", "tokens, mean", "most", "answer's tokens", "full", "no context", "scored",
                "full again: same output", "same bits"},
               {}};
  Table states_{"State error before the question, beside the loss",
                {"cell", "mode", "first layer", "mean", "last layer", "loss, points"},
                {}};
  Chart chart_{.title = "Points lost against full recompute", .y_label = "points", .kind = ChartKind::dot};
  Chart layers_;
  std::vector<Chart> charts_;
};

}  // namespace

Result summarize(const std::vector<Cell>& cells, const std::vector<CellRows>& rows,
                 const std::vector<StateErrors>& states, const std::vector<std::string>& modes, const Scored& scored,
                 uint64_t seed) {
  Summary summary(modes, scored, seed);
  for (size_t i = 0; i < cells.size(); ++i) summary.add(cells[i], rows[i], states.empty() ? StateErrors() : states[i]);
  return summary.take(cells);
}

}  // namespace hypic::quality
