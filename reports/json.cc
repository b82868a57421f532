#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>
#include <span>

#include "core/check.h"
#include "core/json.h"
#include "reports/text.h"
#include "reports/write.h"

namespace hypic {
namespace {

using Json = nlohmann::ordered_json;

// Indexed by the enums.
constexpr std::array kFormats = {"compact", "integer", "fixed", "scientific", "percent"};
constexpr std::array kMarks = {"none", "good", "bad"};
constexpr std::array kChartKinds = {"line", "bar", "dot"};

// ---- writing

Json number(double value) {
  return std::isfinite(value) ? Json(value) : Json(format_number(value));
}

template <class T, class Write>
Json list(const std::vector<T>& items, Write write) {
  Json out = Json::array();
  for (const T& item : items) out.push_back(write(item));
  return out;
}

Json json(const std::string& text) { return text; }
Json json(const Cell& cell);
Json json(const Series& series);
Json json(const Table& table);
Json json(const Chart& chart);
Json json(const Value& value);
Json json(const Check& check);

template <class T>
Json json(const std::vector<T>& items) {
  return list(items, [](const T& item) { return json(item); });
}

Json json(const Value& value) {
  return {{"tag", value.tag}, {"value", number(value.value)}, {"unit", value.unit}};
}

Json json(const Check& check) {
  return {{"tag", check.tag},
          {"relation", check.relation},
          {"expected", number(check.expected)},
          {"tolerance", number(check.tolerance)},
          {"measured", number(check.measured)},
          {"holds", check.holds},
          {"source", check.source}};
}

Json json(const Cell& cell) {
  Json out = Json::object();
  if (const auto* text = std::get_if<std::string>(&cell.content))
    out["text"] = *text;
  else
    out["value"] = number(std::get<double>(cell.content));
  const Cell usual;
  if (cell.format != usual.format) out["format"] = kFormats[static_cast<int>(cell.format)];
  if (cell.digits != usual.digits) out["digits"] = cell.digits;
  if (cell.mark != usual.mark) out["mark"] = kMarks[static_cast<int>(cell.mark)];
  return out;
}

Json json(const Table& table) {
  Json out = {{"title", table.title}, {"heads", json(table.heads)}, {"rows", json(table.rows)}};
  if (!table.note.empty()) out["note"] = table.note;
  return out;
}

Json json(const Series& series) {
  return {{"name", series.name}, {"x", list(series.x, number)}, {"y", list(series.y, number)}};
}

Json json(const Chart& chart) {
  return {{"title", chart.title},
          {"kind", kChartKinds[static_cast<int>(chart.kind)]},
          {"x_label", chart.x_label},
          {"y_label", chart.y_label},
          {"log_x", chart.log_x},
          {"log_y", chart.log_y},
          {"categories", json(chart.categories)},
          {"series", json(chart.series)}};
}

Json json(const Result& result) {
  return {{"name", result.name},
          {"driver", result.driver},
          {"verdict", to_string(result.verdict)},
          {"why", result.why},
          {"seconds", number(result.seconds)},
          {"note", result.note},
          {"values", json(result.values)},
          {"checks", json(result.checks)},
          {"tables", json(result.tables)},
          {"charts", json(result.charts)}};
}

std::string dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

// ---- reading

// What does not fit; the path grows from the leaf outwards while the exception travels.
struct Misfit {
  std::string path;
  std::string reason;
};

[[noreturn]] void expected(const char* what, const Json& found) {
  throw Misfit{"", str("expected ", what, ", found ", found.type_name())};
}

template <class Read>
auto optional(const Json& object, const char* key, Read read) -> decltype(read(object)) {
  if (!object.is_object()) expected("an object", object);
  const auto found = object.find(key);
  if (found == object.end()) return {};
  try {
    return read(*found);
  } catch (Misfit& misfit) {
    misfit.path = str(".", key, misfit.path);
    throw;
  }
}

template <class Read>
auto field(const Json& object, const char* key, Read read) {
  if (object.is_object() && !object.contains(key)) throw Misfit{"", str("lacks \"", key, "\"")};
  return optional(object, key, read);
}

template <class Read>
auto list_of(Read read) {
  return [read](const Json& array) {
    if (!array.is_array()) expected("an array", array);
    std::vector<decltype(read(array))> items;
    items.reserve(array.size());
    for (const Json& item : array) {
      try {
        items.push_back(read(item));
      } catch (Misfit& misfit) {
        misfit.path = str("[", items.size(), "]", misfit.path);
        throw;
      }
    }
    return items;
  };
}

std::string read_text(const Json& json) {
  if (!json.is_string()) expected("a string", json);
  return json.get<std::string>();
}

bool read_bool(const Json& json) {
  if (!json.is_boolean()) expected("true or false", json);
  return json.get<bool>();
}

double read_number(const Json& json) {
  if (json.is_number()) return json.get<double>();
  if (json == "nan") return std::numeric_limits<double>::quiet_NaN();
  if (json == "inf") return std::numeric_limits<double>::infinity();
  if (json == "-inf") return -std::numeric_limits<double>::infinity();
  expected("a number, \"nan\", \"inf\" or \"-inf\"", json);
}

int read_digits(const Json& json) {
  if (!json.is_number_integer() || json < 0 || json > 17) expected("an integer in 0 … 17", json);
  return json.get<int>();
}

template <class Enum>
auto read_name(std::span<const char* const> names) {
  return [names](const Json& json) {
    const std::string text = read_text(json);
    const auto found = std::ranges::find(names, text);
    if (found == names.end()) throw Misfit{"", str("unknown name \"", one_line(text, 40), "\"")};
    return static_cast<Enum>(found - names.begin());
  };
}

Verdict read_verdict(const Json& json) {
  try {
    return verdict_from_string(read_text(json));
  } catch (const Error& error) {
    throw Misfit{"", one_line(error.what(), 200)};
  }
}

Value read_value(const Json& json) {
  return {.tag = field(json, "tag", read_text),
          .value = field(json, "value", read_number),
          .unit = field(json, "unit", read_text)};
}

Check read_check(const Json& json) {
  return {.tag = field(json, "tag", read_text),
          .relation = field(json, "relation", read_text),
          .expected = field(json, "expected", read_number),
          .tolerance = field(json, "tolerance", read_number),
          .measured = field(json, "measured", read_number),
          .holds = field(json, "holds", read_bool),
          .source = field(json, "source", read_text)};
}

Cell read_cell(const Json& json) {
  Cell cell;
  if (json.is_object() && json.contains("text"))
    cell.content = field(json, "text", read_text);
  else
    cell.content = field(json, "value", read_number);
  if (json.contains("format")) cell.format = field(json, "format", read_name<Format>(kFormats));
  if (json.contains("digits")) cell.digits = field(json, "digits", read_digits);
  if (json.contains("mark")) cell.mark = field(json, "mark", read_name<Mark>(kMarks));
  return cell;
}

// Pages fill short rows up, and visit each series in each category: of a damaged or hostile file
// that could be millions of millions.
void check_product(std::size_t a, std::size_t b, const char* what) {
  constexpr std::size_t kMost = 1'000'000;
  if (b != 0 && a > kMost / b) throw Misfit{"", str("over ", kMost, " ", what)};
}

Table read_table(const Json& json) {
  Table table{.title = field(json, "title", read_text),
              .heads = field(json, "heads", list_of(read_text)),
              .rows = field(json, "rows", list_of(list_of(read_cell))),
              .note = optional(json, "note", read_text)};
  std::size_t columns = table.heads.size();
  for (const auto& row : table.rows) columns = std::max(columns, row.size());
  check_product(table.rows.size(), columns, "cells");
  return table;
}

Series read_series(const Json& json) {
  return {.name = field(json, "name", read_text),
          .x = field(json, "x", list_of(read_number)),
          .y = field(json, "y", list_of(read_number))};
}

Chart read_chart(const Json& json) {
  Chart chart{.title = field(json, "title", read_text),
              .x_label = field(json, "x_label", read_text),
              .y_label = field(json, "y_label", read_text),
              .log_y = field(json, "log_y", read_bool),
              .log_x = field(json, "log_x", read_bool),
              .kind = field(json, "kind", read_name<ChartKind>(kChartKinds)),
              .categories = field(json, "categories", list_of(read_text)),
              .series = field(json, "series", list_of(read_series))};
  check_product(chart.categories.size(), chart.series.size(), "places for bars");
  return chart;
}

// Name, driver, verdict, why and values are the fixed part; other programs may leave out the rest.
Result read_result(const Json& json) {
  return {.name = field(json, "name", read_text),
          .driver = field(json, "driver", read_text),
          .verdict = field(json, "verdict", read_verdict),
          .why = field(json, "why", read_text),
          .seconds = optional(json, "seconds", read_number),
          .values = field(json, "values", list_of(read_value)),
          .checks = optional(json, "checks", list_of(read_check)),
          .tables = optional(json, "tables", list_of(read_table)),
          .charts = optional(json, "charts", list_of(read_chart)),
          .note = optional(json, "note", read_text)};
}

Environment read_environment(const Json& json) {
  if (!json.is_object()) expected("an object", json);
  Environment environment;
  for (const auto& [key, value] : json.items())
    environment.entries.emplace_back(key, read_text(value));
  return environment;
}

Report read_whole(const Json& json) {
  return {.title = optional(json, "title", read_text),
          .description = optional(json, "description", read_text),
          .environment = field(json, "environment", read_environment),
          .results = field(json, "results", list_of(read_result))};
}

// Ours nest 8 deep and hold few keys; Json looks keys up one by one, so many would take for ever.
constexpr JsonLimits kLimits{.depth = 32, .keys = 1000};

template <class Read>
auto parse(std::string_view text, const std::string& where, const JsonLimits& limits, Read read) {
  require(text.size() <= kMaxReportBytes, where, ": too large: ", text.size(), " bytes");
  check_json(text, where, limits);
  try {
    return read(Json::parse(text));
  } catch (const Misfit& misfit) {
    const std::string path = misfit.path.substr(misfit.path.starts_with('.') ? 1 : 0);
    fail(where, ": ", path, path.empty() ? "" : ": ", misfit.reason);
  }
}

}  // namespace

std::string to_json(const Report& report) {
  Json environment = Json::object();
  for (const auto& [key, value] : report.environment.entries) environment[key] = value;
  // One result a line, so that line tools can read and compare reports.
  std::string out = "{\"title\": " + dump(report.title) +
                    ",\n\"description\": " + dump(report.description) +
                    ",\n\"environment\": " + dump(environment) + ",\n\"results\": [";
  for (const Result& result : report.results)
    out += (&result == &report.results.front() ? "\n" : ",\n") + to_json(result);
  return out + "\n]}\n";
}

std::string to_json(const Result& result) { return dump(json(result)); }

Report report_from_json(std::string_view text, const std::string& where) {
  return parse(text, where, kLimits, read_whole);
}

Result result_from_json(std::string_view text, const std::string& where) {
  JsonLimits limits = kLimits;
  limits.name_line = false;  // it is one line
  return parse(text, where, limits, read_result);
}

}  // namespace hypic
