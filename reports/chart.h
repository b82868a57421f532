// Charts as HTML figures with inline SVG.
#pragma once

#include <string>

#include "reports/report.h"

namespace hypic {

// A <figure> of title, legend, SVG and notes on what could not be drawn; well-formed XML for any
// input. Colours and fonts come from the page's style sheet (write_html.cc).
std::string chart_html(const Chart& chart);

}  // namespace hypic
