#include <cctype>
#include <string>

#include "core/check.h"
#include "reports/text.h"
#include "reports/view.h"
#include "reports/write.h"

namespace hypic {
namespace {

// Text that Markdown shows as it is. An underscore inside a word is already harmless.
std::string escape(std::string_view raw) {
  const std::string text = clean_text(raw);
  const auto is_word = [&](std::size_t i) {
    return i < text.size() && std::isalnum(static_cast<unsigned char>(text[i]));
  };
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '&')
      out += "&amp;";
    else if (c == '<')
      out += "&lt;";
    else if (c == '>')
      out += "&gt;";
    else if (std::string_view("\\`*[]#|~").find(c) != std::string_view::npos ||
             (c == '_' && !(i > 0 && is_word(i - 1) && is_word(i + 1))))
      out += {'\\', c};
    else if (c != '\r')
      out += c;
  }
  return out;
}

// A cell or heading: one line.
std::string inline_text(std::string_view text) { return escape(one_line(text)); }

void add_row(std::string& out, const std::vector<std::string>& cells) {
  out += "|";
  for (const std::string& cell : cells) out += " " + inline_text(cell) + " |";
  out += "\n";
}

// alignment: one character a column, 'r' for right.
void add_heads(std::string& out, const std::vector<std::string>& heads,
               std::string_view alignment) {
  out += "\n";
  add_row(out, heads);
  out += "|";
  for (char side : alignment) out += side == 'r' ? "---:|" : "---|";
  out += "\n";
}

void add_paragraph(std::string& out, std::string_view text) {
  if (!text.empty()) out += "\n" + escape(text) + "\n";
}

void add_checks(std::string& out, const Result& result) {
  if (result.checks.empty()) return;
  add_heads(out, {"", "asked", "measured", "expected", "tolerance", "source"}, "llrrrl");
  for (const Check& check : result.checks)
    add_row(out, {check.holds ? "✓" : "✗ fails", check.tag,
                  with_unit(check.measured, unit_of(result, check.tag)), expectation(check),
                  check.tolerance == 0 ? "" : format_number(check.tolerance), check.source});
}

void add_table(std::string& out, const Table& table) {
  const std::size_t width = columns(table);
  if (!table.title.empty()) out += "\n**" + inline_text(table.title) + "**\n";
  if (width == 0) return;
  std::vector<std::string> heads = table.heads;
  heads.resize(width);
  std::string alignment;
  for (std::size_t i = 0; i < width; ++i) alignment += is_numeric(table, i) ? 'r' : 'l';
  add_heads(out, heads, alignment);
  for (const auto& row : table.rows) {
    std::vector<std::string> cells(width);
    for (std::size_t i = 0; i < row.size(); ++i)
      cells[i] = (row[i].mark == Mark::bad ? "✗ " : "") + cell_text(row[i]);
    add_row(out, cells);
  }
  add_paragraph(out, table.note);
}

void add_values(std::string& out, const Result& result) {
  if (result.values.empty()) return;
  out += str("\n<details><summary>Values (", result.values.size(), ")</summary>\n");
  add_heads(out, {"tag", "value", "unit"}, "lrl");
  for (const Value& value : result.values)
    add_row(out, {value.tag, format_number(value.value), value.unit});
  out += "\n</details>\n";
}

void add_result(std::string& out, const Result& result) {
  out += str("\n## ", to_string(result.verdict), ": ", inline_text(result.name), "\n");
  add_paragraph(out,
                str(result.driver, ", ", format_number(result.seconds, Format::fixed, 2), " s"));
  add_paragraph(out, result.why);
  add_paragraph(out, result.note);
  add_checks(out, result);
  for (const Table& table : result.tables) add_table(out, table);
  for (const Chart& chart : result.charts)
    out += "\nChart in report.html: " + inline_text(chart.title) + "\n";
  add_values(out, result);
}

}  // namespace

std::string to_markdown(const Report& report) {
  std::string out =
      str("# ", report.title.empty() ? "hypic report" : inline_text(report.title), "\n");
  add_paragraph(out, report.description);
  out += "\n**" + counts(report) + "**\n";
  if (!report.environment.entries.empty()) {
    add_heads(out, {"environment", ""}, "ll");
    for (const auto& [key, value] : report.environment.entries) add_row(out, {key, value});
  }
  if (!report.results.empty()) {
    add_heads(out, {"verdict", "result", "driver", "seconds", "headline"}, "lllrl");
    for (const Result* result : by_urgency(report))
      add_row(out, {std::string(to_string(result->verdict)), result->name, result->driver,
                    format_number(result->seconds, Format::fixed, 2), headline(*result)});
  }
  for (const Result& result : report.results) add_result(out, result);
  return out;
}

}  // namespace hypic
