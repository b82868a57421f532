// What the rows of a quality case say of its modes.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "harness/drivers/quality_items.h"
#include "harness/drivers/quality_rows.h"
#include "reports/report.h"

namespace hypic::quality {

// When a cell counts: full recompute scores at least `from` points over at least `rows` items. A model that cannot do
// the task at all loses nothing by reuse.
struct Scored {
  double from = 80;
  int64_t rows = 500;
};

// Rows of one cell by mode ("full", kAgain, the modes, kFloor), each in the order of the items.
using CellRows = std::map<std::string, std::vector<Row>>;

// State before the question against full recompute, relative: by mode and layer, the mean over some items; NaN in a
// layer without one.
using StateErrors = std::map<std::string, std::vector<double>>;

// Values, tables and charts; see prepare_quality. `modes`: as they stand in tables. `states`: of each cell, or empty.
Result summarize(const std::vector<Cell>& cells, const std::vector<CellRows>& rows,
                 const std::vector<StateErrors>& states, const std::vector<std::string>& modes, const Scored& scored,
                 uint64_t seed);

// The title of the table of scores in a report.
inline constexpr const char* kScores = "Score and loss";

}  // namespace hypic::quality
