#include "reports/chart.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "core/check.h"
#include "reports/text.h"

namespace hypic {
namespace {

constexpr double kWidth = 620;
constexpr double kLineHeight = 340;  // of a line chart
constexpr double kRightMargin = 34;  // half of a tick label hangs over
constexpr double kBottomMargin = 58;
// Widest character at the font size that narrow screens get (17 units).
constexpr double kCharacter = 10.8;
constexpr int kColours = 8;              // classes c0 … c7 of the style sheet
constexpr std::size_t kAllMarkers = 64;  // a longer series marks only some of its points
constexpr std::size_t kSomeMarkers = 16;

// ---- axes

struct Tick {
  double at;  // 0 … 1 along the axis
  std::string label;
  bool major = true;  // first to get its label where not all fit
};

struct Axis {
  bool log = false;
  double lo = 0, hi = 1;  // exponents of ten if log
  std::vector<Tick> ticks;

  double place(double value) const {
    return std::clamp(((log ? std::log10(value) : value) - lo) / (hi - lo), 0.0, 1.0);
  }
};

// Near the end of the range, differences would overflow.
bool is_drawable(double value, bool log) { return std::abs(value) <= 1e300 && (!log || value > 0); }

struct Range {
  double lo = std::numeric_limits<double>::infinity();
  double hi = -std::numeric_limits<double>::infinity();
  void add(double value) {
    lo = std::min(lo, value);
    hi = std::max(hi, value);
  }
  bool empty() const { return lo > hi; }
};

std::string linear_label(double value, double size, int step_exponent) {
  if (std::abs(value) < 1e-9 * size) return "0";
  if (size < 1e6 && step_exponent >= -4)
    return format_number(value, Format::fixed, std::max(0, -step_exponent));
  const int size_exponent = static_cast<int>(std::floor(std::log10(size)));
  return format_number(value, Format::scientific, std::max(0, size_exponent - step_exponent));
}

// Ends on ticks of 1, 2 or 5 times a power of ten.
Axis linear_axis(Range range, bool from_zero) {
  constexpr double kSteps = 5;
  if (range.empty()) range = {0, 1};
  // Zero joins where it is asked for or costs at most half of the axis.
  if (range.lo > 0 && (from_zero || range.lo < range.hi / 2)) range.lo = 0;
  if (range.hi < 0 && (from_zero || range.hi > range.lo / 2)) range.hi = 0;
  const double size = std::max(std::abs(range.lo), std::abs(range.hi));
  // Nothing to resolve: all equal, or too close for sound steps.
  constexpr double kTiny = 1e-300;
  if (range.hi - range.lo <= std::max(1e-9 * size, kTiny)) {
    const double margin = size == 0 ? 1 : std::max(0.1 * size, kTiny);
    range = {range.lo - (from_zero ? 0 : margin), range.hi + margin};
  }
  const double raw = (range.hi - range.lo) / kSteps;
  int exponent = static_cast<int>(std::floor(std::log10(raw)));
  const double fraction = raw / std::pow(10, exponent);
  double step = fraction < 1.5 ? 1 : fraction < 3 ? 2 : fraction < 7 ? 5 : 10;
  step *= std::pow(10, exponent);
  if (fraction >= 7) ++exponent;
  const double first = std::floor(range.lo / step + 1e-6);
  const double last = std::ceil(range.hi / step - 1e-6);
  Axis axis{.log = false, .lo = first * step, .hi = last * step};
  const double end = std::max(std::abs(axis.lo), std::abs(axis.hi));
  for (double i = first; i <= last; ++i)
    axis.ticks.push_back({(i - first) / (last - first), linear_label(i * step, end, exponent)});
  return axis;
}

// The mantissas of the ticks in a decade.
constexpr std::array kMantissas = {1, 2, 5};

// 10^(1/3) apart, nearly: … 0.5 1 2 5 10 20 …
double exponent_of_tick(int i) {
  const int decade = static_cast<int>(std::floor(i / 3.0));
  return decade + std::log10(kMantissas[i - 3 * decade]);
}

std::string log_label(int i, bool plain) {
  const int decade = static_cast<int>(std::floor(i / 3.0)), mantissa = kMantissas[i - 3 * decade];
  return plain ? format_number(mantissa * std::pow(10, decade)) : str(mantissa, "e", decade);
}

// Ends on 1, 2 or 5 times a power of ten; a long one has ticks only at decades.
Axis log_axis(Range range) {
  if (range.empty()) range = {1, 10};
  const double lo = std::log10(range.lo), hi = std::log10(range.hi);
  int first = static_cast<int>(std::floor(3 * lo)) + 2, last = static_cast<int>(3 * hi) - 2;
  while (exponent_of_tick(first) > lo + 1e-9) --first;
  while (exponent_of_tick(last) < hi - 1e-9) ++last;
  if (first == last) --first, ++last;
  Axis axis{.log = true, .lo = exponent_of_tick(first), .hi = exponent_of_tick(last)};

  int stride = 3;  // of decades, in ticks
  for (int decades : {2, 3, 5, 10, 20, 50, 100})
    if ((last - first) / stride > 7) stride = 3 * decades;
  if (last - first <= 7) stride = 1;
  const bool plain = axis.lo >= -3 && axis.hi < 6;
  for (int i = first; i <= last; ++i)
    if (i % stride == 0)
      axis.ticks.push_back(
          {(exponent_of_tick(i) - axis.lo) / (axis.hi - axis.lo), log_label(i, plain), i % 3 == 0});
  return axis;
}

Axis make_axis(const Range& range, bool log, bool from_zero = false) {
  return log ? log_axis(range) : linear_axis(range, from_zero);
}

// ---- pieces of SVG

std::string num(double value) {
  std::string text = format_number(value, Format::fixed, 1);
  if (text.ends_with(".0")) text.resize(text.size() - 2);
  return text;
}

std::string line(double x1, double y1, double x2, double y2, const char* css) {
  return str("<path class=\"", css, "\" d=\"M", num(x1), " ", num(y1), "L", num(x2), " ", num(y2),
             "\"/>");
}

std::string text(double x, double y, const char* anchor, std::string_view content,
                 const std::string& more = "") {
  return str("<text x=\"", num(x), "\" y=\"", num(y), "\" text-anchor=\"", anchor, "\"", more, ">",
             escape_xml(content), "</text>");
}

std::size_t characters(std::string_view text) {
  return std::ranges::count_if(text, [](char c) { return (c & 0xc0) != 0x80; });
}

// Long names differ at their ends as often as at their starts: the middle goes.
std::string shortened(std::string_view content, std::size_t limit) {
  const std::string clean = one_line(content);
  const std::size_t count = characters(clean);
  if (count <= limit) return clean;
  const std::size_t head = limit / 2, tail = limit - head - 1;
  std::size_t head_end = clean.size(), tail_begin = clean.size(), seen = 0;
  for (std::size_t i = 0; i < clean.size(); ++i) {
    if ((clean[i] & 0xc0) == 0x80) continue;
    if (seen == head) head_end = i;
    if (seen == count - tail) tail_begin = i;
    ++seen;
  }
  return clean.substr(0, head_end) + "…" + clean.substr(tail_begin);
}

// A label of at most two lines, cut where a part of the name ends, so that what tells long names apart stays.
std::vector<std::string> wrapped(std::string_view content, std::size_t limit) {
  const std::string clean = one_line(content);
  const std::size_t count = characters(clean);
  if (count <= limit) return {clean};
  // The latest sign that leaves both lines short enough; it begins the second one. Bytes, 0: none.
  std::size_t strong = 0, weak = 0, hard = 0, seen = 0;
  for (std::size_t i = 0; i < clean.size(); ++i) {
    if ((clean[i] & 0xc0) == 0x80) continue;
    if (seen == limit) hard = i;
    if (seen > 0 && seen <= limit && count - seen <= limit) {
      if (std::string_view("@: ").find(clean[i]) != std::string_view::npos) strong = i;
      if (std::string_view("_.,/").find(clean[i]) != std::string_view::npos) weak = i;
    }
    ++seen;
  }
  const std::size_t at = strong > 0 ? strong : weak > 0 ? weak : hard;
  const std::string second = clean.substr(at);
  return {clean.substr(0, at), shortened(second.starts_with(' ') ? second.substr(1) : second, limit)};
}

// Colour and shape tell series apart together: 8 × 5 combinations.
std::string marker(std::size_t series, double x, double y, const std::string& tip) {
  constexpr std::array kShapes = {"m-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0z", "m-3.7-3.7h7.4v7.4h-7.4z",
                                  "m0-5l4.6 8h-9.2z", "m0-5.2l5.2 5.2l-5.2 5.2l-5.2-5.2z",
                                  "m0 5l4.6-8h-9.2z"};
  return str("<path class=\"m c", series % kColours, "\" d=\"M", num(x), " ", num(y),
             kShapes[series % kShapes.size()], "\">",
             tip.empty() ? "" : str("<title>", escape_xml(tip), "</title>"), "</path>");
}

// Another round of colours gets dashes.
std::string line_class(std::size_t series) {
  return str("l c", series % kColours, series >= kColours ? " d" : "");
}

std::string label_or_number(const std::string& name, std::size_t index) {
  return name.empty() ? str("series ", index + 1) : one_line(name, 120);
}

std::string legend(const Chart& chart, bool lines) {
  const bool needed =
      chart.series.size() > 1 || (chart.series.size() == 1 && !chart.series[0].name.empty());
  if (!needed) return "";
  std::string out = "<div class=\"legend\">";
  for (std::size_t s = 0; s < chart.series.size(); ++s) {
    out += "<span><svg width=\"28\" height=\"12\" viewBox=\"0 0 28 12\">";
    if (lines) out += str("<path class=\"", line_class(s), "\" d=\"M1 6L27 6\"/>");
    out += marker(s, 14, 6, "") + "</svg>" + escape_xml(label_or_number(chart.series[s].name, s)) +
           "</span>";
  }
  return out + "</div>";
}

std::string svg(const Chart& chart, double height, const std::string& body) {
  return str("<svg class=\"chart\" viewBox=\"0 0 ", num(kWidth), " ", num(height),
             "\" role=\"img\" aria-label=\"", escape_xml(one_line(chart.title, 200)), "\">", body,
             "</svg>");
}

// The horizontal axis at the bottom: grid, labels that fit, title.
std::string bottom_axis(const Axis& axis, const std::string& label, double left, double right,
                        double top, double bottom) {
  constexpr double kGap = 6;
  std::string out;
  std::vector<Range> taken;
  for (const bool major : {true, false}) {
    for (const Tick& tick : axis.ticks) {
      if (tick.major != major) continue;
      const double x = left + tick.at * (right - left);
      const double half = (tick.label.size() * kCharacter + kGap) / 2;
      out += line(x, top, x, bottom, "g");
      if (std::ranges::any_of(taken, [&](const Range& other) {
            return x - half < other.hi && x + half > other.lo;
          }))
        continue;
      out += text(x, bottom + 22, "middle", tick.label);
      taken.push_back({x - half, x + half});
    }
  }
  out += line(left, bottom, right, bottom, "a");
  return out + text((left + right) / 2, bottom + 48, "middle", shortened(label, 52));
}

// Values that cannot be drawn, counted for the note.
struct Dropped {
  static constexpr std::size_t kNamed = 4;  // the first of each kind
  std::size_t not_finite = 0, not_positive = 0;
  std::vector<std::string> named_not_finite, named_not_positive;

  // True if the value can be drawn.
  bool keep(double value, bool log, const std::string& name = "") {
    if (is_drawable(value, log)) return true;
    const bool low = std::isfinite(value) && value <= 0;
    ++(low ? not_positive : not_finite);
    auto& named = low ? named_not_positive : named_not_finite;
    if (!name.empty() && named.size() < kNamed) named.push_back(name);
    return false;
  }
  std::string note() const {
    std::string out;
    const auto add = [&](const char* what, std::size_t count, const std::vector<std::string>& named) {
      if (count == 0) return;
      out += str(out.empty() ? "" : " ", what, ": ");
      if (named.empty()) out += str(count, count == 1 ? " point" : " points");
      for (std::size_t i = 0; i < named.size(); ++i) out += (i ? "; " : "") + named[i];
      if (!named.empty() && count > named.size()) out += str("; and ", count - named.size(), " more");
      out += ".";
    };
    add("NaN or infinite, so not drawn", not_finite, named_not_finite);
    add("Zero or less, so not on the log axis", not_positive, named_not_positive);
    return out.empty() ? out : "<p class=\"dim\">" + escape_xml(out) + "</p>";
  }
};

std::string no_data(double x, double y) { return text(x, y, "middle", "no data"); }

// ---- line charts

struct Point {
  double x, y;
  bool drawn;
};

std::string draw_series(const std::string& name, std::size_t index,
                        const std::vector<Point>& points, const Series& series, const Axis& x_axis,
                        const Axis& y_axis, double left, double right, double top, double bottom) {
  std::string path, markers;
  const std::size_t stride =
      points.size() <= kAllMarkers ? 1 : (points.size() + kSomeMarkers - 1) / kSomeMarkers;
  const auto drawn = [&](std::size_t i) { return i < points.size() && points[i].drawn; };
  for (std::size_t i = 0; i < points.size(); ++i) {
    if (!drawn(i)) continue;
    const double x = left + x_axis.place(points[i].x) * (right - left);
    const double y = bottom - y_axis.place(points[i].y) * (bottom - top);
    const bool starts = i == 0 || !drawn(i - 1);
    path += str(starts ? "M" : "L", num(x), " ", num(y));
    if (i % stride == 0 || (starts && !drawn(i + 1)))
      markers +=
          marker(index, x, y,
                 str(name, ": ", format_number(series.x[i]), ", ", format_number(series.y[i])));
  }
  if (path.empty()) return "";
  return str("<path class=\"", line_class(index), "\" d=\"", path, "\"/>", markers);
}

std::string line_chart(const Chart& chart) {
  Dropped dropped;
  Range xs, ys;
  std::vector<std::vector<Point>> drawn;
  for (const Series& series : chart.series) {
    std::vector<Point>& points = drawn.emplace_back();
    for (std::size_t i = 0; i < std::min(series.x.size(), series.y.size()); ++i) {
      const double x = series.x[i], y = series.y[i];
      points.push_back({x, y, dropped.keep(x, chart.log_x) && dropped.keep(y, chart.log_y)});
      if (!points.back().drawn) continue;
      xs.add(x);
      ys.add(y);
    }
  }
  const Axis x_axis = make_axis(xs, chart.log_x), y_axis = make_axis(ys, chart.log_y);
  std::size_t widest = 3;
  for (const Tick& tick : y_axis.ticks) widest = std::max(widest, tick.label.size());
  const double left = 34 + widest * kCharacter, right = kWidth - kRightMargin;
  const double top = 10, bottom = kLineHeight - kBottomMargin;

  std::string body = bottom_axis(x_axis, chart.x_label, left, right, top, bottom);
  for (const Tick& tick : y_axis.ticks) {
    const double y = bottom - tick.at * (bottom - top);
    body += line(left, y, right, y, "g") + text(left - 8, y + 5, "end", tick.label);
  }
  body += line(left, top, left, bottom, "a");
  const double middle = (top + bottom) / 2;
  body += text(18, middle, "middle", shortened(chart.y_label, 28),
               str(" transform=\"rotate(-90 18 ", num(middle), ")\""));
  if (ys.empty()) body += no_data((left + right) / 2, middle);
  for (std::size_t s = 0; s < chart.series.size(); ++s)
    body += draw_series(label_or_number(chart.series[s].name, s), s, drawn[s], chart.series[s],
                        x_axis, y_axis, left, right, top, bottom);
  return legend(chart, true) + svg(chart, kLineHeight, body) + dropped.note();
}

// ---- categories: one row each

std::string category_chart(const Chart& chart) {
  const bool bars = chart.kind == ChartKind::bar && !chart.log_y;
  constexpr std::size_t kLabel = 24;
  Dropped dropped;
  Range range;
  std::size_t widest = 1;
  std::vector<std::vector<std::string>> labels;  // by category: lines
  bool two_lines = false;
  for (const std::string& category : chart.categories) {
    labels.push_back(wrapped(category, kLabel));
    for (const std::string& part : labels.back()) widest = std::max(widest, characters(part));
    two_lines = two_lines || labels.back().size() > 1;
  }
  for (std::size_t s = 0; s < chart.series.size(); ++s)
    for (std::size_t i = 0; i < std::min(chart.series[s].y.size(), chart.categories.size()); ++i)
      if (dropped.keep(chart.series[s].y[i], chart.log_y,
                       str(label_or_number(chart.series[s].name, s), ", ", one_line(chart.categories[i], 120))))
        range.add(chart.series[s].y[i]);
  const Axis axis = make_axis(range, chart.log_y, bars);

  const double bar = chart.series.size() > 1 ? 14 : 18;
  constexpr double kLine = 17;  // between the lines of a label
  const double row = std::max(bars ? bar * std::max<std::size_t>(1, chart.series.size()) + 10 : 26.0,
                              two_lines ? 2 * kLine + 6 : 0.0);
  const double left = 14 + widest * kCharacter, right = kWidth - kRightMargin - (bars ? 36 : 0);
  const double top = chart.x_label.empty() ? 8 : 30;
  const double bottom = top + row * std::max<std::size_t>(1, chart.categories.size());
  std::string body = bottom_axis(axis, chart.y_label, left, right, top, bottom);
  if (!chart.x_label.empty()) body += text(left - 8, 18, "end", shortened(chart.x_label, widest));
  if (range.empty()) body += no_data((left + right) / 2, (top + bottom) / 2 + 5);

  const auto place = [&](double value) { return left + axis.place(value) * (right - left); };
  for (std::size_t i = 0; i < chart.categories.size(); ++i) {
    const double y = top + row * i, middle = y + row / 2;
    body += str("<g><title>", escape_xml(one_line(chart.categories[i], 200)), "</title>",
                text(left - 8, labels[i].size() == 1 ? middle + 5 : middle - 3, "end", labels[i][0]),
                labels[i].size() == 1 ? "" : text(left - 8, middle - 3 + kLine, "end", labels[i][1]), "</g>");
    if (!bars) body += line(left, middle, right, middle, "g");
    for (std::size_t s = 0; s < chart.series.size(); ++s) {
      const Series& series = chart.series[s];
      if (i >= series.y.size() || !is_drawable(series.y[i], chart.log_y)) continue;
      const double value = series.y[i], x = place(value);
      const std::string tip = str(label_or_number(series.name, s), ": ",
                                  one_line(chart.categories[i], 120), ", ", format_number(value));
      if (!bars) {
        body += marker(s, x, middle, tip);
        continue;
      }
      const double zero = place(0), bar_top = y + 5 + bar * s;
      body += str("<rect class=\"m c", s % kColours, "\" x=\"", num(std::min(x, zero)), "\" y=\"",
                  num(bar_top), "\" width=\"", num(std::abs(x - zero)), "\" height=\"",
                  num(bar - 2), "\"><title>", escape_xml(tip), "</title></rect>",
                  text(std::max(x, zero) + 5, bar_top + bar / 2 + 4, "start", format_number(value),
                       " class=\"v\""));
    }
  }
  if (bars) body += line(place(0), top, place(0), bottom, "a");
  return legend(chart, false) + svg(chart, bottom + kBottomMargin, body) + dropped.note();
}

}  // namespace

std::string chart_html(const Chart& chart) {
  const std::string body =
      chart.kind == ChartKind::line ? line_chart(chart) : category_chart(chart);
  return "<figure><figcaption>" + escape_xml(chart.title) + "</figcaption>" + body + "</figure>\n";
}

}  // namespace hypic
