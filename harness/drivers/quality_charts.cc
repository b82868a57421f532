#include "harness/drivers/quality_charts.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <set>
#include <tuple>

#include "core/check.h"
#include "serving/mode.h"

namespace hypic::quality {
namespace {

struct Measure {
  const char *tag, *title, *y_label;
  bool log_y;
};
constexpr Measure kMeasures[] = {
    {"loss", "Points lost", "points", false},
    {"kl", "KL of the first token from full recompute", "nats (log)", true},
    {"state", "State error before the question", "relative, mean of layers (log)", true}};

// Of loss and kl the value, of state the mean over layers; NaN where there is none.
double value_of(const std::vector<Value>& values, const Measure& measure, const std::string& cell,
                const std::string& mode) {
  const std::string tag = str(measure.tag, ".", cell, ".", mode);
  double sum = 0;
  int count = 0;
  for (const Value& value : values)
    if (value.tag == tag || value.tag.starts_with(tag + ".layer_")) sum += value.value, ++count;
  return count > 0 ? sum / count : std::numeric_limits<double>::quiet_NaN();
}

const char* name_of(Compose compose) {
  switch (compose) {
    case Compose::transfer:
      return "T·S + U";
    case Compose::add:
      return "addition";
    case Compose::last:
      return "last block";
    case Compose::zero:
      return "zero state";
  }
  return "";
}

// A line's points by x; nothing of fewer than two.
void add_line(Chart& chart, const std::string& name, const std::map<double, double>& points) {
  Series line{name, {}, {}};
  for (const auto& [x, y] : points) {
    if (std::isnan(y)) continue;
    line.x.push_back(x);
    line.y.push_back(y);
  }
  if (line.x.size() > 1) chart.series.push_back(std::move(line));
}

// Lines over the recomputed tokens of a segment. Without any, head and both ends are the same.
Chart over_seams(const Cell& cell, const std::vector<std::string>& modes, const std::vector<Value>& values,
                 const Measure& measure) {
  Chart chart{.title = str(measure.title, ", ", cell.label()),
              .x_label = "tokens of a segment that are recomputed",
              .y_label = measure.y_label,
              .log_y = measure.log_y};
  std::map<std::pair<std::string, bool>, std::map<double, double>> lines;  // by what is composed, two-sided
  std::set<std::string> two_sided;
  for (const std::string& text : modes)
    if (const Mode mode = mode_named(text); mode.tail > 0) two_sided.insert(name_of(mode.compose));
  for (const std::string& text : modes) {
    const Mode mode = mode_named(text);
    if (mode.reuse != Reuse::segments || mode.rotate != Rotate::on) continue;
    const double y = value_of(values, measure, cell.label(), text);
    const std::string what = name_of(mode.compose);
    lines[{what, mode.tail > 0}][mode.head + mode.tail] = y;
    if (mode.head + mode.tail == 0 && two_sided.contains(what)) lines[{what, true}][0] = y;
  }
  for (const auto& [line, points] : lines)
    add_line(chart, str(line.first, line.second ? ", both ends" : ", head"), points);
  return chart;
}

// Lines of modes over what tells the cells of a group apart.
Chart over_cells(const std::vector<const Cell*>& group, const std::function<double(const Cell&)>& x,
                 const std::string& of, const char* x_label, const std::vector<std::string>& modes,
                 const std::vector<Value>& values, const Measure& measure) {
  Chart chart{.title = str(measure.title, ", ", of),
              .x_label = x_label,
              .y_label = measure.y_label,
              .log_y = measure.log_y,
              .log_x = true};
  for (const std::string& mode : modes) {
    std::map<double, double> points;
    for (const Cell* cell : group) points[x(*cell)] = value_of(values, measure, cell->label(), mode);
    add_line(chart, mode, points);
  }
  return chart;
}

}  // namespace

std::vector<Chart> charts_over(const std::vector<Cell>& cells, const std::vector<std::string>& modes,
                               const std::vector<Value>& values) {
  std::vector<Chart> charts;
  const auto add = [&](Chart chart) {
    if (!chart.series.empty()) charts.push_back(std::move(chart));
  };
  std::set<std::tuple<Compose, int>> widths;  // the named modes alone have up to two, which is no study of them
  for (const std::string& text : modes)
    if (const Mode mode = mode_named(text); mode.reuse == Reuse::segments && mode.rotate == Rotate::on)
      widths.insert({mode.compose, mode.head + mode.tail});
  const auto varied = [&](Compose compose) {
    return std::count_if(widths.begin(), widths.end(), [&](const auto& w) { return std::get<0>(w) == compose; }) > 3;
  };
  const bool seams =
      varied(Compose::transfer) || varied(Compose::last) || varied(Compose::add) || varied(Compose::zero);
  using Group = std::vector<const Cell*>;
  std::map<std::pair<std::string, int>, Group> by_tokens, by_segments;
  for (const Cell& cell : cells) {
    if (cell.task.empty()) continue;
    by_tokens[{cell.task, cell.shape.tokens}].push_back(&cell);
    by_segments[{cell.task, cell.shape.segments}].push_back(&cell);
  }
  for (const Measure& measure : kMeasures) {
    if (seams)
      for (const Cell& cell : cells) add(over_seams(cell, modes, values, measure));
    for (const auto& [key, group] : by_tokens)
      add(over_cells(
          group, [](const Cell& c) { return static_cast<double>(c.shape.segments); },
          str(key.first, ", documents of ", key.second, " tokens"), "documents (log)", modes, values, measure));
    for (const auto& [key, group] : by_segments)
      add(over_cells(
          group, [](const Cell& c) { return static_cast<double>(c.shape.tokens); },
          str(key.first, ", ", key.second, " documents"), "tokens of a document (log)", modes, values, measure));
  }
  return charts;
}

}  // namespace hypic::quality
