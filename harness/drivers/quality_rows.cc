#include "harness/drivers/quality_rows.h"

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <nlohmann/json.hpp>

#include "core/check.h"
#include "core/json.h"
#include "datasets/rows.h"
#include "reports/line_log.h"

namespace hypic::quality {
namespace {

double four_digits(double x) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.4g", x);
  return std::strtod(text, nullptr);
}

// JSON has no NaN and no infinity.
double number(const nlohmann::json& value) {
  return value.is_null() ? std::numeric_limits<double>::quiet_NaN() : value.get<double>();
}

}  // namespace

nlohmann::ordered_json to_json(const Row& row) {
  std::vector<double> gaps;
  for (const double gap : row.gaps) gaps.push_back(four_digits(gap));
  return {{"model", row.model},
          {"cell", row.cell},
          {"id", row.id},
          {"mode", row.mode},
          {"score", row.score},
          {"output", row.output},
          {"tokens", row.tokens},
          {"gaps", gaps},
          {"same_output", row.same_output},
          {"same_bits", row.same_bits},
          {"same_first", row.same_first},
          {"kl", row.kl},
          {"allowed", four_digits(row.allowed)},
          {"total", row.total},
          {"computed", row.computed}};
}

Row row_from_json(const nlohmann::json& json, const std::string& where) {
  try {
    Row row;
    json.at("model").get_to(row.model);
    json.at("cell").get_to(row.cell);
    json.at("id").get_to(row.id);
    json.at("mode").get_to(row.mode);
    json.at("score").get_to(row.score);
    json.at("output").get_to(row.output);
    json.at("tokens").get_to(row.tokens);
    for (const nlohmann::json& gap : json.at("gaps")) row.gaps.push_back(number(gap));
    json.at("same_output").get_to(row.same_output);
    json.at("same_bits").get_to(row.same_bits);
    json.at("same_first").get_to(row.same_first);
    row.kl = number(json.at("kl"));
    row.allowed = number(json.at("allowed"));
    json.at("total").get_to(row.total);
    json.at("computed").get_to(row.computed);
    require(row.gaps.size() == row.tokens.size(), where, ": as many gaps as tokens are asked for");
    return row;
  } catch (const nlohmann::json::exception& error) {
    fail(where, ": not a row of driver quality: ", error.what());
  }
}

std::vector<Row> load_rows(const std::string& path) {
  RowReader reader(path);
  std::vector<Row> rows;
  for (std::string line; reader.next_line(line);) {
    try {
      require(line.starts_with("{\"sha256\":"), "not a line of an items.jsonl of hypic quality");
      rows.push_back(row_from_json(parse_json(unsealed(line), "item"), reader.where()));
    } catch (const Error& error) {
      const std::string what = error.what();
      fail(what.starts_with(path) ? what : str(reader.where(), ": ", what));
    }
  }
  require(!rows.empty(), path, ": holds no row");
  return rows;
}

}  // namespace hypic::quality
