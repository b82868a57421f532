// What the writers show alike.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "reports/report.h"

namespace hypic {

// The results, failing ones first, otherwise in order.
std::vector<const Result*> by_urgency(const Report& report);
std::size_t count(const Report& report, Verdict verdict);
// "2 FAIL · 31 PASS · 1 SKIP", or "no results".
std::string counts(const Report& report);
// The one line about a result that an index has room for.
std::string headline(const Result& result);
// "≤ 1e-6"; the tolerance stands apart.
std::string expectation(const Check& check);
// "18.8 ms", "0.25".
std::string with_unit(double value, std::string_view unit);
// The unit of the value with this tag, empty if there is none.
std::string_view unit_of(const Result& result, std::string_view tag);
// Whether to align the column right: its first filled cell is a number or an interval, "1.2 – 1.4"; – alone stands
// for one that is missing.
bool is_numeric(const Table& table, std::size_t column);
// Columns of the table: of its heads or its longest row.
std::size_t columns(const Table& table);

}  // namespace hypic
