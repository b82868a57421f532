// A report: what a suite asked, what came out. Plain data; write.h turns it into files.
#pragma once

#include <array>
#include <concepts>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace hypic {

// measured: it ran to its end, and nothing was asked of what came out. skip: it did not run.
enum class Verdict { pass, fail, skip, invalid, undecided, measured };

// What a reader has to look at first, first.
inline constexpr std::array kVerdictsByUrgency = {Verdict::fail, Verdict::invalid,
                                                  Verdict::undecided, Verdict::pass,
                                                  Verdict::measured, Verdict::skip};

// "PASS", "FAIL", "SKIP", "INVALID", "UNDECIDED", "MEASURED".
std::string_view to_string(Verdict verdict);
// The inverse; throws Error on any other text.
Verdict verdict_from_string(std::string_view text);

// One measured number. The tag is a dotted path, such as "error.layer_00"; the value may be NaN or
// infinite.
struct Value {
  std::string tag;
  double value = 0;
  std::string unit;
  bool operator==(const Value&) const = default;
};

// An expectation of the suite and how it came out. `measured` is the value with the same tag, NaN
// if the driver never produced it. Whoever fills this in judges `holds`; the report only shows it.
struct Check {
  std::string tag;
  std::string relation;  // as shown before `expected`: "<=", "==", "within", ...
  double expected = 0;
  double tolerance = 0;  // 0: none, and not shown
  double measured = 0;
  bool holds = false;
  std::string source;  // where the expectation comes from: "paper, table 3", "law", "baseline h200"
  bool operator==(const Check&) const = default;
};

// How a number is printed. `compact` chooses: 0.25, 1536, 3.1e-16.
enum class Format { compact, integer, fixed, scientific, percent };

// Colours a cell of a matrix.
enum class Mark { none, good, bad };

// A table cell: text or a number. `digits` are those after the point (not used by compact and
// integer); percent shows 0.25 as 25%.
struct Cell {
  std::variant<std::string, double> content;
  Format format = Format::compact;
  int digits = 1;
  Mark mark = Mark::none;

  Cell(std::string text = "", Mark mark = Mark::none) : content(std::move(text)), mark(mark) {}
  Cell(const char* text, Mark mark = Mark::none) : content(std::string(text)), mark(mark) {}
  Cell(std::floating_point auto number, Format format = Format::compact, int digits = 1,
       Mark mark = Mark::none)
      : content(static_cast<double>(number)), format(format), digits(digits), mark(mark) {}
  Cell(std::integral auto number, Mark mark = Mark::none)
      : content(static_cast<double>(number)), format(Format::integer), mark(mark) {}
  bool operator==(const Cell&) const = default;
};

struct Table {
  std::string title;
  std::vector<std::string> heads;
  std::vector<std::vector<Cell>> rows;  // a short row is filled up with empty cells
  std::string note = "";  // under the table: plain text, lines kept
  bool operator==(const Table&) const = default;
};

// line: y over x. bar, dot: one group per category, drawn as rows, so that long names stay legible;
// bars start at zero, so on a log axis they become dots.
enum class ChartKind { line, bar, dot };

struct Series {
  std::string name;
  std::vector<double> x;  // line only, as long as y
  std::vector<double> y;  // bar and dot: one per category; NaN leaves a gap
  bool operator==(const Series&) const = default;
};

struct Chart {
  std::string title;
  std::string x_label;
  std::string y_label;  // the value axis, whichever way it is drawn
  bool log_y = false;   // the value axis; values <= 0 are left out, with a note
  bool log_x = false;   // line only
  ChartKind kind = ChartKind::line;
  std::vector<std::string> categories;  // bar and dot only
  std::vector<Series> series;
  bool operator==(const Chart&) const = default;
};

// One finished case.
struct Result {
  std::string name;
  std::string driver;  // what ran it: "conformance", "ttft", ...
  Verdict verdict = Verdict::undecided;
  std::string why;  // one line that explains the verdict
  double seconds = 0;
  std::vector<Value> values;
  std::vector<Check> checks;
  std::vector<Table> tables;
  std::vector<Chart> charts;
  std::string note;  // plain text, lines kept
  bool operator==(const Result&) const = default;
};

// Where and how it ran (commit, compiler, cpu, gpu, date, command line, ...), in order.
struct Environment {
  std::vector<std::pair<std::string, std::string>> entries;  // keys are unique
  // Adds the entry, or replaces the one with this key.
  void set(std::string key, std::string value);
  bool operator==(const Environment&) const = default;
};

struct Report {
  std::string title;
  std::string description;  // plain text, lines kept
  Environment environment;
  std::vector<Result> results;
  bool operator==(const Report&) const = default;
};

// The verdict of the whole: fail beats invalid beats undecided beats pass beats measured; skip if nothing
// ran.
Verdict overall(const Report& report);

// The exit code of a program that made this report: 0 pass, measured, or nothing ran, 1 fail, 3 invalid,
// 4 undecided. 2 means wrong usage and never comes from a report.
int exit_code(const Report& report);

}  // namespace hypic
