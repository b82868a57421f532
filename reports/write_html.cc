#include <algorithm>
#include <string>

#include "core/check.h"
#include "reports/chart.h"
#include "reports/text.h"
#include "reports/view.h"
#include "reports/write.h"

namespace hypic {
namespace {

// The palette is Okabe and Ito's, darkened or lightened for contrast with the page. No character
// below needs escaping: the page stays well-formed XML.
constexpr const char* kStyle = R"css(
:root{color-scheme:light dark;--bg:#fff;--fg:#1c2024;--dim:#5d666f;--rule:#d9dee3;--soft:#f4f6f8;
--good:#00734f;--bad:#b83a00;--warn:#8a5a00;--open:#7a3b8f;--good-soft:#e2f3ec;--bad-soft:#fbe5da;
--c0:#0072b2;--c1:#d55e00;--c2:#009e73;--c3:#b0578d;--c4:#b98200;--c5:#3a9bd6;--c6:#555b61;--c7:#7a4b1e}
@media screen and (prefers-color-scheme:dark){:root{--bg:#14171a;--fg:#e4e8ec;--dim:#9aa4ae;
--rule:#333a41;--soft:#1d2226;--good:#3cc9a0;--bad:#ff8a5c;--warn:#f2b632;--open:#d3a3e3;
--good-soft:#12362b;--bad-soft:#46220f;
--c0:#4da3e0;--c1:#ff8a47;--c2:#3cc9a0;--c3:#e19ac4;--c4:#f2b632;--c5:#8cd3ff;--c6:#b8bec4;--c7:#c79a6b}}
*{box-sizing:border-box}
body{margin:0;background:var(--bg);color:var(--fg);font:15px/1.5 system-ui,"Segoe UI",Roboto,
"Liberation Sans",sans-serif;overflow-wrap:anywhere}
main{max-width:1320px;margin:0 auto;padding:24px 20px 60px}
h1{font-size:26px;line-height:1.25;margin:0 0 4px}
h2{font-size:19px;line-height:1.3;margin:0 0 6px;display:flex;flex-wrap:wrap;gap:4px 10px;align-items:center}
h3{font-size:14px;margin:18px 0 6px;color:var(--dim);font-weight:600}
a{color:inherit;text-decoration-color:var(--rule);text-underline-offset:3px}
p{margin:6px 0}
.text{white-space:pre-line;max-width:90ch}
.dim{color:var(--dim);font-size:13px;font-weight:400}
.pill{display:inline-block;font-size:12px;font-weight:700;letter-spacing:.03em;line-height:1;
padding:4px 7px;border-radius:4px;border:1px solid;white-space:nowrap}
.pass{color:var(--good)}.fail{color:var(--bad)}.invalid{color:var(--warn)}
.undecided{color:var(--open)}.skip,.measured{color:var(--dim)}
.pill.fail{background:var(--bad);color:var(--bg);border-color:var(--bad)}
.sum{display:flex;flex-wrap:wrap;gap:8px;margin:12px 0}
.sum .pill{font-size:14px;padding:6px 10px}
dl.env{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,300px),1fr));gap:6px 24px;
margin:14px 0 24px;padding:12px 14px;background:var(--soft);border-radius:6px;font-size:13px}
dl.env dt{color:var(--dim)}dl.env dd{margin:0}dl.env .wide{grid-column:1/-1}
.box{overflow-x:auto;margin:6px 0 10px}
table{border-collapse:collapse;font-size:14px}
th{font-weight:600;text-align:left;color:var(--dim);font-size:13px;border-bottom:1px solid var(--rule)}
th,td{padding:4px 14px 4px 0;vertical-align:top}
th+th,td+td{padding-left:2px}
tbody tr+tr td{border-top:1px solid var(--rule)}
th,td{overflow-wrap:break-word;max-width:44ch}.data{width:max-content}
th.n,td.n{text-align:right;white-space:nowrap;font-variant-numeric:tabular-nums}
td.tag{font-family:ui-monospace,"DejaVu Sans Mono",monospace;font-size:13px}
td.good{background:var(--good-soft)}td.bad{background:var(--bad-soft);font-weight:700}
td.bad::before{content:"✗ "}
.data td:first-child,.data th:first-child{position:sticky;left:0;background:var(--bg)}
.index{width:100%}.index td:nth-child(5){overflow-wrap:anywhere;width:48%;max-width:none}
.index td:nth-child(2){overflow-wrap:anywhere;min-width:16ch;font-weight:600}
section{margin-top:28px;padding-top:18px;border-top:2px solid var(--rule)}
.why{border-left:4px solid;padding:2px 0 2px 10px;margin:8px 0}.why span{color:var(--fg)}
.charts{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,520px),1fr));gap:10px 28px;
align-items:start}
figure{margin:12px 0 0;max-width:720px;min-width:0;break-inside:avoid}
figcaption{font-weight:600;margin-bottom:4px}
.legend{display:flex;flex-wrap:wrap;gap:2px 16px;font-size:13px}
.legend svg{vertical-align:-1px;margin-right:5px}
svg.chart{display:block;width:100%;height:auto;overflow:visible}
svg text{font-size:13px;fill:var(--fg);font-variant-numeric:tabular-nums}svg text.v{fill:var(--dim);font-size:12px}
.g{stroke:var(--rule);stroke-width:1}.a{stroke:var(--dim);stroke-width:1.2}
.l{fill:none;stroke:currentColor;stroke-width:2;stroke-linejoin:round}.d{stroke-dasharray:7 4}
.m{fill:currentColor}
.c0{color:var(--c0)}.c1{color:var(--c1)}.c2{color:var(--c2)}.c3{color:var(--c3)}
.c4{color:var(--c4)}.c5{color:var(--c5)}.c6{color:var(--c6)}.c7{color:var(--c7)}
details{margin:10px 0}summary{cursor:pointer;color:var(--dim);font-size:14px}
@media (max-width:620px){main{padding:16px 12px 40px}svg text{font-size:17px}svg text.v{font-size:15px}
.index thead{display:none}.index td{border:0;padding:0;width:auto;max-width:none}
.index tr{display:grid;grid-template-columns:auto 1fr auto;gap:2px 10px;padding:8px 0;
border-top:1px solid var(--rule)}.index tr+tr td{border:0}
.index td:nth-child(3){display:none}.index td:nth-child(5){grid-column:1/-1;width:auto}}
@media print{main{max-width:none;padding:0}body{font-size:12px}section{break-inside:auto}
.box{overflow:visible}tr{break-inside:avoid}h2,h3{break-after:avoid}}
)css";

std::string css_class(Verdict verdict) {
  std::string name(to_string(verdict));
  std::ranges::transform(name, name.begin(), [](char c) { return c | 0x20; });
  return name;
}

std::string pill(Verdict verdict, const std::string& text) {
  return str("<span class=\"pill ", css_class(verdict), "\">", text, "</span>");
}

std::string pill(Verdict verdict) { return pill(verdict, std::string(to_string(verdict))); }

std::string seconds(double value) { return format_number(value, Format::fixed, 2); }

std::string cell(std::string_view css, std::string_view text, std::string_view more = "") {
  return str("<td", css.empty() ? "" : " class=\"", css, css.empty() ? "" : "\"", more, ">",
             escape_xml(text), "</td>");
}

// Hovering shows all digits.
std::string number_cell(double value) {
  return cell("n", format_number(value), " title=\"" + format_exact(value) + "\"");
}

std::string head(bool numeric, std::string_view text) {
  return str("<th", numeric ? " class=\"n\"" : "", ">", escape_xml(text), "</th>");
}

std::string boxed(const char* css, const std::string& heads, const std::string& rows) {
  return str("<div class=\"box\"><table class=\"", css, "\"><thead><tr>", heads,
             "</tr></thead><tbody>\n", rows, "</tbody></table></div>\n");
}

std::string environment_html(const Environment& environment) {
  if (environment.entries.empty()) return "";
  std::string out = "<dl class=\"env\">";
  for (const auto& [key, value] : environment.entries)
    out += str(value.size() > 60 ? "<div class=\"wide\">" : "<div>", "<dt>", escape_xml(key),
               "</dt><dd>", escape_xml(value), "</dd></div>");
  return out + "</dl>\n";
}

// The anchor of a result: names may repeat and hold anything.
std::string anchor(const Report& report, const Result& result) {
  return str("r", &result - report.results.data() + 1);
}

std::string index_html(const Report& report) {
  std::string rows;
  for (const Result* result : by_urgency(report))
    rows += str("<tr><td>", pill(result->verdict), "</td><td><a href=\"#", anchor(report, *result),
                "\">", escape_xml(result->name), "</a></td>", cell("dim", result->driver),
                cell("n", seconds(result->seconds) + " s"), cell("", headline(*result)), "</tr>\n");
  if (rows.empty()) return "";
  return boxed("index",
               head(false, "verdict") + head(false, "result") + head(false, "driver") +
                   head(true, "time") + head(false, "headline"),
               rows);
}

std::string checks_html(const Result& result) {
  if (result.checks.empty()) return "";
  std::string rows;
  for (const Check& check : result.checks)
    rows += str("<tr>", cell(check.holds ? "pass" : "fail", check.holds ? "✓ holds" : "✗ fails"),
                cell("tag", check.tag), number_cell(check.measured),
                cell("dim", unit_of(result, check.tag)), cell("n", expectation(check)),
                check.tolerance == 0 ? cell("n", "") : number_cell(check.tolerance),
                cell("dim", check.source), "</tr>\n");
  return "<h3>Checks</h3>" +
         boxed("data",
               head(false, "") + head(false, "asked") + head(true, "measured") + head(false, "") +
                   head(true, "expected") + head(true, "tolerance") + head(false, "source"),
               rows);
}

std::string table_html(const Table& table) {
  std::string heads, rows;
  const std::size_t width = columns(table);
  for (std::size_t i = 0; i < width; ++i)
    heads += head(is_numeric(table, i), i < table.heads.size() ? table.heads[i] : "");
  for (const auto& row : table.rows) {
    rows += "<tr>";
    for (std::size_t i = 0; i < width; ++i) {
      const Cell shown = i < row.size() ? row[i] : Cell();
      std::string css = is_numeric(table, i) || std::holds_alternative<double>(shown.content) ? "n" : "";
      if (shown.mark == Mark::good) css += " good";
      if (shown.mark == Mark::bad) css += " bad";
      rows += cell(css, cell_text(shown));
    }
    rows += "</tr>\n";
  }
  const std::string note = table.note.empty() ? "" : "<p class=\"text\">" + escape_xml(table.note) + "</p>\n";
  return "<h3>" + escape_xml(table.title) + "</h3>" + boxed("data", heads, rows) + note;
}

std::string values_html(const Result& result) {
  if (result.values.empty()) return "";
  std::string rows;
  for (const Value& value : result.values)
    rows += str("<tr>", cell("tag", value.tag), number_cell(value.value), cell("dim", value.unit),
                "</tr>\n");
  return str("<details><summary>Values (", result.values.size(), ")</summary>",
             boxed("data", head(false, "tag") + head(true, "value") + head(false, "unit"), rows),
             "</details>\n");
}

std::string result_html(const Report& report, const Result& result) {
  std::string out =
      str("<section id=\"", anchor(report, result), "\"><h2>", pill(result.verdict), "<span>",
          escape_xml(result.name), "</span><span class=\"dim\">", escape_xml(result.driver), " · ",
          seconds(result.seconds), " s</span></h2>\n");
  if (!result.why.empty())
    out += str("<p class=\"text why ", css_class(result.verdict), "\"><span>",
               escape_xml(result.why), "</span></p>\n");
  if (!result.note.empty()) out += "<p class=\"text\">" + escape_xml(result.note) + "</p>\n";
  out += checks_html(result);
  for (const Table& table : result.tables) out += table_html(table);
  if (!result.charts.empty()) out += "<div class=\"charts\">";
  for (const Chart& chart : result.charts) out += chart_html(chart);
  if (!result.charts.empty()) out += "</div>\n";
  return out + values_html(result) + "</section>\n";
}

}  // namespace

std::string to_html(const Report& report) {
  const std::string title = escape_xml(report.title.empty() ? "hypic report" : report.title);
  std::string out =
      str("<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"/>"
          "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>"
          "<meta http-equiv=\"Content-Security-Policy\" "
          "content=\"default-src 'none'; style-src 'unsafe-inline'\"/>\n<title>",
          to_string(overall(report)), " · ", title, "</title>\n<style>", kStyle,
          "</style></head>\n<body><main>\n<h1>", title, "</h1>\n");
  if (!report.description.empty())
    out += "<p class=\"text\">" + escape_xml(report.description) + "</p>\n";
  out += "<div class=\"sum\">";
  for (Verdict verdict : kVerdictsByUrgency)
    if (const std::size_t n = count(report, verdict))
      out += pill(verdict, str(n, " ", to_string(verdict)));
  if (report.results.empty()) out += "<span class=\"dim\">no results</span>";
  out += "</div>\n" + environment_html(report.environment) + index_html(report);
  for (const Result& result : report.results) out += result_html(report, result);
  return out + "</main></body></html>\n";
}

}  // namespace hypic
