#include "reports/report.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <filesystem>
#include <limits>
#include <utility>

#include "core/check.h"
#include "core/file.h"
#include "core/temporary_folder.h"
#include "reports/chart.h"
#include "reports/item_log.h"
#include "reports/result_log.h"
#include "reports/text.h"
#include "reports/write.h"

namespace hypic {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

Result result_of(const std::string& name, Verdict verdict) {
  return {.name = name, .driver = "laws", .verdict = verdict};
}

Report report_of(std::initializer_list<Verdict> verdicts) {
  Report report;
  for (Verdict verdict : verdicts) report.results.push_back(result_of("case", verdict));
  return report;
}

// One of everything.
Report full_report() {
  Report report{.title = "quick & <small>", .description = "line one\nline two"};
  report.environment.set("gpu", "H200");
  report.environment.set("commit", "abc");
  report.environment.set("gpu", "H20");
  Result result = result_of("laws|of \"all\" `families`", Verdict::fail);
  result.why = "error <1e-5> & more";
  result.seconds = 1.25;
  result.values = {{"error.layer_00", 0.1, "relative"}, {"tokens", 32768, ""}};
  result.checks = {{"error.layer_00", "<=", 1e-5, 0, 0.1, false, "law"},
                   {"kl", "within", 0.031, 0.004, 0.033, true, "paper, table 4"}};
  result.tables = {{"family × law",
                    {"family", "split", "hits"},
                    {{"kda", Cell(3.14e-16, Format::scientific, 1, Mark::bad), 7},
                     {"gla", {0.25, Format::percent, 0}},
                     {Cell("text", Mark::good)}}}};
  result.charts = {{.title = "error",
                    .x_label = "layer",
                    .y_label = "relative",
                    .log_y = true,
                    .series = {{"a", {0, 1, 2}, {1e-3, 1e-2, 0}}}},
                   {.title = "modes",
                    .kind = ChartKind::bar,
                    .categories = {"add", "zero"},
                    .series = {{"kl", {}, {0.1, 0.3}}}}};
  result.note = "a note";
  report.results = {result, result_of("second", Verdict::pass)};
  return report;
}

// "" if text is one well-formed XML element after an optional declaration and doctype, else what is
// wrong. Strict where our writers could slip: nesting, attribute quotes, entities, raw characters.
std::string xml_fault(std::string_view text) {
  std::vector<std::string> open;
  std::size_t at = 0, elements = 0;
  const auto fault = [&](const char* what) {
    return str(what, " at ", at, ": ", text.substr(at, 60));
  };
  const auto skip_name = [&] {
    const std::size_t start = at;
    while (at < text.size() && (std::isalnum(static_cast<unsigned char>(text[at])) ||
                                std::string_view(":_-.").find(text[at]) != std::string_view::npos))
      ++at;
    return std::string(text.substr(start, at - start));
  };
  const auto entity = [&] {
    const std::string_view rest = text.substr(at, 8);
    for (const char* known : {"&amp;", "&lt;", "&gt;", "&quot;", "&#39;", "&#10;", "&#13;", "&#9;"})
      if (rest.starts_with(known)) return true;
    return false;
  };
  if (clean_text(text) != text) return "characters that XML forbids";
  for (const char* head : {"<?xml", "<!DOCTYPE html"})
    if (text.starts_with(head)) at = text.find('>') + 1;
  while (at < text.size()) {
    if (text[at] == '&') {
      if (!entity()) return fault("bad entity");
      ++at;
    } else if (text[at] != '<') {
      if (open.empty() && !std::isspace(static_cast<unsigned char>(text[at])))
        return fault("text outside");
      ++at;
    } else if (text.substr(at).starts_with("</")) {
      at += 2;
      const std::string name = skip_name();
      if (open.empty() || open.back() != name || text[at] != '>') return fault("bad end tag");
      open.pop_back();
      ++at;
    } else {
      ++at;
      if (open.empty() && elements++ > 0) return fault("second root");
      const std::string name = skip_name();
      if (name.empty()) return fault("bad start tag");
      std::vector<std::string> names;
      while (at < text.size() && std::isspace(static_cast<unsigned char>(text[at]))) {
        ++at;
        const std::string attribute = skip_name();
        if (attribute.empty() || !text.substr(at).starts_with("=\"")) return fault("bad attribute");
        if (std::ranges::count(names, attribute)) return fault("attribute twice");
        names.push_back(attribute);
        for (at += 2; at < text.size() && text[at] != '"'; ++at)
          if (text[at] == '<' || (text[at] == '&' && !entity())) return fault("raw in attribute");
        ++at;
      }
      const bool closed = text.substr(at).starts_with("/>");
      at += closed;
      if (at >= text.size() || text[at] != '>') return fault("tag not closed");
      ++at;
      if (!closed) open.push_back(name);
    }
  }
  if (!open.empty()) return "not closed: " + open.back();
  return elements == 1 ? "" : "no element";
}

// The reason that reading gives.
template <class Read>
std::string error_of(Read read) {
  try {
    read();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

std::string json_error(const std::string& text) {
  return error_of([&] { report_from_json(text, "r.json"); });
}

class Files : public testing::Test {
 protected:
  void put(const std::string& name, const std::string& text) { folder_.write(name, text); }
  const TemporaryFolder folder_;
  const std::string& dir_ = folder_.path();
};

TEST(Verdicts, names_go_both_ways) {
  for (Verdict verdict : kVerdictsByUrgency)
    EXPECT_EQ(verdict_from_string(to_string(verdict)), verdict);
  EXPECT_THROW(verdict_from_string("pass"), Error);
}

TEST(Verdicts, exit_codes) {
  using enum Verdict;
  EXPECT_EQ(exit_code(report_of({})), 0);
  EXPECT_EQ(overall(report_of({})), skip);
  EXPECT_EQ(exit_code(report_of({pass, skip})), 0);
  EXPECT_EQ(overall(report_of({pass, skip})), pass);
  EXPECT_EQ(exit_code(report_of({skip})), 0);
  EXPECT_EQ(exit_code(report_of({measured})), 0);
  EXPECT_EQ(overall(report_of({skip, measured})), measured);
  EXPECT_EQ(overall(report_of({measured, pass})), pass);
  EXPECT_EQ(exit_code(report_of({pass, undecided})), 4);
  EXPECT_EQ(exit_code(report_of({undecided, invalid, pass})), 3);
  EXPECT_EQ(exit_code(report_of({undecided, invalid, fail, pass})), 1);
}

TEST(Text, numbers) {
  EXPECT_EQ(format_number(0), "0");
  EXPECT_EQ(format_number(-0.0), "0");
  EXPECT_EQ(format_number(32768), "32768");
  EXPECT_EQ(format_number(3.1e-16), "3.1e-16");
  EXPECT_EQ(format_number(1e-5), "1e-5");
  EXPECT_EQ(format_number(0.25), "0.25");
  EXPECT_EQ(format_number(0.0123456), "0.01235");
  EXPECT_EQ(format_number(-61.25), "-61.25");
  EXPECT_EQ(format_number(123456.7), "123456.7");
  EXPECT_EQ(format_number(1.23456e12), "1.235e12");
  EXPECT_EQ(format_number(1e300), "1e300");
  EXPECT_EQ(format_number(0.412, Format::percent, 0), "41%");
  EXPECT_EQ(format_number(2.0, Format::fixed, 1), "2.0");
  EXPECT_EQ(format_number(2.0, Format::scientific, 2), "2.00e0");
  EXPECT_EQ(format_number(1e300, Format::fixed, 99).size(), 319u);
  EXPECT_EQ(format_number(-kInf), "-inf");
  EXPECT_EQ(cell_text(Cell(7)), "7");
  EXPECT_EQ(cell_text(Cell(kNan)), "nan");
}

TEST(Text, cleaning_and_escaping) {
  EXPECT_EQ(escape_xml("<a href=\"x\">'&"), "&lt;a href=&quot;x&quot;&gt;&#39;&amp;");
  EXPECT_EQ(clean_text("a\xff"
                       "b"),
            "a\ufffd"
            "b");
  EXPECT_EQ(clean_text("\xc0\xaf"), "\ufffd\ufffd");  // overlong
  EXPECT_EQ(clean_text("\xed\xa0\x80"), "\ufffd");    // surrogate
  EXPECT_EQ(clean_text("\xe2\x82"), "\ufffd");        // cut
  EXPECT_EQ(clean_text(std::string("a\0\x1b[31mb\n", 9)), "a[31mb\n");
  EXPECT_EQ(clean_text("\xef\xbf\xbe"), "");  // U+FFFE
  EXPECT_EQ(one_line("a\nb", 10), "a b");
  EXPECT_EQ(one_line("äöü", 3), "ä…");
  EXPECT_EQ(one_line("abcdefghij", 4), "abcd…");
}

RC_GTEST_PROP(Text, any_bytes_become_clean, (const std::string& text)) {
  const std::string clean = clean_text(text);
  RC_ASSERT(clean_text(clean) == clean);
  RC_ASSERT(xml_fault("<a b=\"" + escape_xml(text) + "\">" + escape_xml(text) + "</a>") == "");
}

TEST(Json, round_trip) {
  const Report report = full_report();
  EXPECT_EQ(report_from_json(to_json(report), "r"), report);
  EXPECT_EQ(report.environment.entries.size(), 2u);
  EXPECT_EQ(report.environment.entries[0].second, "H20");
}

TEST(Json, fixed_keys) {
  Report report = report_of({Verdict::skip});
  report.results[0].values = {{"a.b", kNan, "ms"}};
  const std::string text = to_json(report);
  EXPECT_NE(text.find("\"environment\": {}"), std::string::npos);
  EXPECT_NE(text.find("\"results\": [\n{\"name\":\"case\",\"driver\":\"laws\",\"verdict\":\"SKIP\","
                      "\"why\":\"\","),
            std::string::npos);
  EXPECT_NE(text.find("\"values\":[{\"tag\":\"a.b\",\"value\":\"nan\",\"unit\":\"ms\"}]"),
            std::string::npos);
}

TEST(Json, numbers_that_json_lacks) {
  Result result = result_of("r", Verdict::pass);
  result.values = {{"a", kNan, ""}, {"b", kInf, ""}, {"c", -kInf, ""}, {"d", -0.0, ""}};
  result.charts = {{.series = {{"s", {1, kInf}, {kNan, 5e-324}}}}};
  const Result back = result_from_json(to_json(result), "r");
  EXPECT_TRUE(std::isnan(back.values[0].value));
  EXPECT_EQ(back.values[1].value, kInf);
  EXPECT_EQ(back.values[2].value, -kInf);
  EXPECT_TRUE(std::signbit(back.values[3].value));
  EXPECT_TRUE(std::isnan(back.charts[0].series[0].y[0]));
  EXPECT_EQ(back.charts[0].series[0].y[1], 5e-324);
  EXPECT_EQ(to_json(result).find('\n'), std::string::npos);
}

RC_GTEST_PROP(Json, any_values_round_trip,
              (const std::vector<std::pair<std::string, double>>& values)) {
  Result result = result_of("r", Verdict::pass);
  for (const auto& [tag, value] : values) result.values.push_back({clean_text(tag), value, ""});
  RC_ASSERT(result_from_json(to_json(result), "r") == result);
}

TEST(Json, invalid_utf8_is_replaced) {
  const Report report{.title = "a\xff"};
  EXPECT_EQ(report_from_json(to_json(report), "r").title, "a\ufffd");
}

TEST(Json, other_programs_may_add_and_leave_out) {
  const Report report = report_from_json(
      R"({"extra":[1],"environment":{"gpu":"H20"},"results":[{"name":"n","driver":"d",
          "verdict":"PASS","why":"","values":[],"more":{}}]})",
      "r");
  EXPECT_EQ(report.results.at(0).name, "n");
}

TEST(Json, errors_name_place_and_reason) {
  EXPECT_EQ(json_error("{}"), "r.json: lacks \"environment\"");
  EXPECT_EQ(json_error("[]"), "r.json: expected an object, found array");
  EXPECT_EQ(json_error(R"({"environment":{"a":1},"results":[]})"),
            "r.json: environment: expected a string, found number");
  const auto with = [](const std::string& rest) {
    return R"({"environment":{},"results":[{"name":"n","driver":"d","why":"","values":)" + rest;
  };
  EXPECT_EQ(json_error(with(R"([],"verdict":"GOOD"}]})")),
            "r.json: results[0].verdict: unknown verdict 'GOOD': use PASS, FAIL, MEASURED, SKIP, INVALID or "
            "UNDECIDED");
  EXPECT_EQ(json_error(with(R"([{"tag":"t","unit":"","value":"x"}],"verdict":"PASS"}]})")),
            "r.json: results[0].values[0].value: expected a number, \"nan\", \"inf\" or \"-inf\", "
            "found string");
  EXPECT_EQ(
      json_error(with(R"([],"verdict":"PASS","tables":[{"title":"","heads":[],"rows":[[7]]}]}]})")),
      "r.json: results[0].tables[0].rows[0][0]: expected an object, found number");
  EXPECT_EQ(
      json_error(with(
          R"([],"verdict":"PASS","tables":[{"title":"","heads":[],"rows":[[{"value":1,"digits":1e9}]]}]}]})")),
      "r.json: results[0].tables[0].rows[0][0].digits: expected an integer in 0 … 17, found "
      "number");
}

TEST(Json, hostile_text_gives_one_short_line) {
  std::string keys = "{";
  for (int i = 0; i < 5000; ++i) keys += str(i ? "," : "", "\"", i, "\":0");
  std::string objects = R"({"environment":{},"results":[{})";
  for (int i = 0; i < 200000; ++i) objects += ",{}";
  for (const std::string& text :
       {objects + "]}", std::string(), std::string("{"), std::string(1 << 20, '['),
        std::string(1 << 20, '"'), std::string("\0\0", 2), std::string("{\"a\":1e999}"),
        std::string("\"\xff\xfe\""), "\"" + std::string(1 << 20, 'x'), keys + "}",
        std::string("{}{}"), to_json(full_report()).substr(0, 900)}) {
    const std::string error = json_error(text);
    EXPECT_TRUE(error.starts_with("r.json:")) << error;
    EXPECT_LT(error.size(), 300u);
    EXPECT_EQ(error.find('\n'), std::string::npos);
  }
}

// Small files whose pages would not be.
TEST(Json, tables_and_charts_are_bounded) {
  const auto result = [](const std::string& rest) {
    return R"({"environment":{},"results":[{"name":"n","driver":"d","why":"","verdict":"PASS",)" +
           (R"("values":[],)" + rest) + "}]}";
  };
  std::string cells = "{\"value\":1}", rows = "[]", names = "\"\"";
  std::string series = R"({"name":"","x":[],"y":[]})";
  const std::string one = series;
  for (int i = 0; i < 1100; ++i)
    cells += ",{\"value\":1}", rows += ",[]", names += ",\"\"", series += "," + one;
  EXPECT_EQ(json_error(result(R"("tables":[{"title":"","heads":[],"rows":[[)" + cells + "]," +
                              rows + "]}]")),
            "r.json: results[0].tables[0]: over 1000000 cells");
  EXPECT_EQ(json_error(result(
                R"("charts":[{"title":"","kind":"bar","x_label":"","y_label":"","log_x":false,)"
                R"("log_y":false,"categories":[)" +
                names + R"(],"series":[)" + series + "]}]")),
            "r.json: results[0].charts[0]: over 1000000 places for bars");
}

RC_GTEST_PROP(Json, a_damaged_report_is_read_or_refused, (std::size_t place, char byte)) {
  std::string text = to_json(full_report());
  text[place % text.size()] = byte;
  try {
    report_from_json(text, "r");
  } catch (const Error&) {
  }
}

TEST_F(Files, write_and_read) {
  const Report report = full_report();
  const std::string out = dir_ + "/a/b";
  write_report(report, out);
  write_report(report, out);
  EXPECT_EQ(read_report(out + "/report.json"), report);
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(out))
    names.push_back(entry.path().filename());
  std::ranges::sort(names);
  EXPECT_EQ(names,
            (std::vector<std::string>{"junit.xml", "report.html", "report.json", "report.md"}));
}

TEST_F(Files, failures_are_errors) {
  put("file", "x");
  EXPECT_THROW(write_report({}, dir_ + "/file"), Error);
  std::filesystem::create_directories(dir_ + "/out/report.json/in_the_way");
  EXPECT_THROW(write_report({}, dir_ + "/out"), Error);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(dir_ + "/out"), {}), 1);
  EXPECT_EQ(error_of([&] { read_report(dir_ + "/none"); }), dir_ + "/none: no such file");
  EXPECT_EQ(error_of([&] { read_report(dir_); }), dir_ + ": not a regular file");
}

TEST_F(Files, log_resumes_after_a_cut_line) {
  const Result first = full_report().results[0], second = result_of("second", Verdict::pass);
  {
    ResultLog log(dir_);
    EXPECT_TRUE(log.finished().empty());
    log.append(first);
    log.append(second);
  }
  const std::string path = dir_ + "/results.jsonl";
  const std::string whole = read_file(path, kMaxReportBytes);
  put("results.jsonl", whole.substr(0, whole.size() - 20));
  {
    ResultLog log(dir_);
    ASSERT_EQ(log.finished().size(), 1u);
    EXPECT_EQ(log.finished()[0], first);
    log.append(second);
  }
  EXPECT_EQ(read_file(path, kMaxReportBytes), whole);
  EXPECT_EQ(ResultLog(dir_).finished().size(), 2u);
}

TEST_F(Files, log_refuses_a_broken_line_and_keeps_it) {
  const std::string path = dir_ + "/results.jsonl";
  for (const char* name : {"a", "b"}) ResultLog(dir_).append(result_of(name, Verdict::fail));
  const std::string whole = read_file(path, kMaxReportBytes);
  const auto with = [&](std::string_view was, std::string_view is) {
    std::string text = whole;
    return text.replace(text.rfind(was), was.size(), is);
  };
  for (const std::string& text :
       {with("FAIL", "PASS"), with("{", ""), with("{", "["), with("\n", " \n"), with("sha", "SHA"),
        whole + "\n", whole + "{\n", whole + to_json(result_of("c", Verdict::pass)) + "\n",
        whole + std::string(100, '\0') + "\n"}) {
    put("results.jsonl", text);
    EXPECT_EQ(
        error_of([&] { ResultLog log(dir_); }),
        str(path, text.starts_with(whole) ? ":3" : ":2",
            ": damaged or edited: its sha256 does not fit the rest of it; take the line out to "
            "run its case again, or start over without --resume"));
    EXPECT_EQ(read_file(path, kMaxReportBytes), text);
  }
}

TEST_F(Files, one_log_a_directory) {
  const ResultLog log(dir_);
  EXPECT_NE(error_of([&] { ResultLog second(dir_); }).find("another run"), std::string::npos);
}

TEST_F(Files, items_are_there_after_a_stop) {
  const std::string path = dir_ + "/items.jsonl";
  {
    ItemLog log;
    log.open(dir_, true);
    EXPECT_FALSE(std::filesystem::exists(path)) << "no file without a row";
    log.append("a", {{{"x", 1}}, {{"x", 2}}});
    log.append("b", {{{"x", 3}}});
  }
  const std::string whole = read_file(path, kMaxReportBytes);
  put("items.jsonl", whole.substr(0, whole.size() - 5));
  {
    ItemLog log;
    log.open(dir_, true);
    EXPECT_FALSE(log.empty());
    ASSERT_EQ(log.earlier("a").size(), 2u);
    EXPECT_EQ(log.earlier("a")[1].at("x"), 2);
    EXPECT_TRUE(log.earlier("b").empty()) << "its line was cut";
    log.append("b", {{{"x", 3}}});
  }
  EXPECT_EQ(read_file(path, kMaxReportBytes), whole);
  put("items.jsonl", std::string(whole).replace(whole.find("\"x\":2"), 5, "\"x\":4"));
  EXPECT_NE(error_of([&] { ItemLog().open(dir_, true); }).find(":2: damaged or edited"), std::string::npos);
  ItemLog log;
  log.open(dir_, false);
  EXPECT_TRUE(log.empty());
}

TEST(Pages, are_well_formed_for_any_text) {
  const std::string evil = "</td><script>alert(1)</script> & \"'|`*\n\x01\xff ]]> --> __x__ [a](b)";
  Report report = full_report();
  for (Result& result : report.results) {
    result.name = result.driver = result.why = result.note = evil;
    result.values.push_back({evil, kNan, evil});
    result.checks.push_back({evil, evil, kInf, kNan, -kInf, true, evil});
    result.tables.push_back({evil, {evil}, {{evil}, {}}});
    result.charts.push_back({.title = evil,
                             .x_label = evil,
                             .y_label = evil,
                             .kind = ChartKind::bar,
                             .categories = {evil},
                             .series = {{evil, {}, {1}}}});
    result.charts.push_back({.x_label = evil, .series = {{evil, {1}, {1}}}});
  }
  report.title = report.description = evil;
  report.environment.set(evil, evil);
  for (const Report& shown : {report, full_report(), Report{}, report_of({Verdict::undecided})}) {
    EXPECT_EQ(xml_fault(to_html(shown)), "");
    EXPECT_EQ(xml_fault(to_junit(shown)), "");
    EXPECT_EQ(to_html(shown).find("<script"), std::string::npos);
    EXPECT_EQ(to_markdown(shown).find("<script"), std::string::npos);
  }
}

TEST(Pages, fetch_nothing) {
  const std::string page = to_html(full_report());
  for (const char* word : {"http:", "https:", "src=", "@import", "url("})
    EXPECT_EQ(page.find(word), std::string::npos) << word;
}

TEST(Pages, failing_results_come_first_in_the_index) {
  Report report;
  report.results = {result_of("third case", Verdict::skip), result_of("second case", Verdict::pass),
                    result_of("first case", Verdict::fail)};
  const std::string page = to_html(report);
  EXPECT_LT(page.find("first case"), page.find("second case"));
  EXPECT_LT(page.find("second case"), page.find("third case"));
  EXPECT_NE(page.find("href=\"#r3\">first case"), std::string::npos);
  EXPECT_NE(page.find("<section id=\"r3\""), std::string::npos);
}

TEST(Pages, junit_elements) {
  using enum Verdict;
  Report report = report_of({pass, fail, skip, invalid, undecided});
  report.results[1].checks = {{"kl", "<=", 1e-5, 0, 0.25, false, "law"}};
  report.results[1].why = "too\nfar";
  report.results[0].seconds = kNan;
  report.results[1].seconds = 1.5;
  const std::string xml = to_junit(report);
  for (const char* part :
       {"tests=\"5\" failures=\"1\" errors=\"2\" skipped=\"1\" time=\"1.500\"",
        "<failure message=\"too&#10;far\" type=\"FAIL\">kl: measured 0.25, expected ≤ 1e-5",
        "<skipped message=\"\"/>", "type=\"INVALID\"", "type=\"UNDECIDED\"",
        "classname=\"laws\" time=\"0.000\"></testcase>"})
    EXPECT_NE(xml.find(part), std::string::npos) << part;
}

TEST(Pages, markdown_rows_hold_together) {
  const std::string text = to_markdown(full_report());
  EXPECT_NE(text.find("**1 FAIL · 1 PASS**"), std::string::npos);
  EXPECT_NE(
      text.find("| FAIL | laws\\|of \"all\" \\`families\\` | laws | 1.25 | error &lt;1e-5&gt; "
                "&amp; more |"),
      std::string::npos);
  EXPECT_NE(text.find("| ✗ fails | error.layer_00 | 0.1 relative | ≤ 1e-5 |  | law |"),
            std::string::npos);
  EXPECT_NE(text.find("| kda | ✗ 3.1e-16 | 7 |"), std::string::npos);
}

// ---- charts

Chart chart_of(std::vector<double> x, std::vector<double> y, bool log = false) {
  return {.title = "t", .log_y = log, .series = {{"s", std::move(x), std::move(y)}}};
}

std::size_t count(std::string_view text, std::string_view part) {
  std::size_t n = 0;
  for (std::size_t at = 0; (at = text.find(part, at)) != std::string_view::npos; at += part.size())
    ++n;
  return n;
}

// The figure after the checks that hold for every chart.
std::string drawn(const Chart& chart) {
  const std::string figure = chart_html(chart);
  EXPECT_EQ(xml_fault(figure), "");
  // Not in coordinates; a tooltip may not say so either, since such points are not drawn.
  for (const char* word : {"nan", "inf", "e+", "e-"})
    for (const char* attribute : {" d=\"", " x=\"", " y=\"", " width=\""})
      for (std::size_t at = 0; (at = figure.find(attribute, at)) != std::string::npos; ++at) {
        const std::size_t start = at + std::string_view(attribute).size();
        EXPECT_EQ(figure.substr(start, figure.find('"', start) - start).find(word),
                  std::string::npos);
      }
  return figure;
}

// Markers beside the one of the legend.
std::size_t points(const Chart& chart) { return count(drawn(chart), "<path class=\"m ") - 1; }

std::string labels(const std::string& figure) {
  std::string out;
  for (std::size_t at = 0; (at = figure.find("<text", at)) != std::string::npos; ++at) {
    const std::size_t start = figure.find('>', at) + 1;
    out += figure.substr(start, figure.find('<', start) - start) + " ";
  }
  return out;
}

TEST(Charts, edge_cases) {
  EXPECT_NE(drawn({}).find("no data"), std::string::npos);
  EXPECT_NE(drawn(chart_of({}, {})).find("no data"), std::string::npos);
  EXPECT_NE(drawn(chart_of({1}, {kNan})).find("NaN or infinite, so not drawn: 1 point."), std::string::npos);
  EXPECT_EQ(points(chart_of({3}, {42})), 1u);
  EXPECT_EQ(points(chart_of({1, 2, 3}, {5, 5, 5})), 3u);
  EXPECT_EQ(points(chart_of({1, 1, 1}, {0, 0, 0})), 3u);
  EXPECT_EQ(points(chart_of({1, 2, 3}, {1e9, 1e9 + 1, 1e9 + 2})), 3u);
  EXPECT_EQ(points(chart_of({1, 2, 3}, {1, std::nextafter(1, 2), 1})), 3u);
  EXPECT_EQ(points(chart_of({1, 2, 3}, {-1e300, 0, 1e300})), 3u);
  EXPECT_EQ(points(chart_of({1, 2}, {1.7e308, -1.7e308})), 0u);
  EXPECT_EQ(points(chart_of({1, 2}, {5e-324, 1e-323})), 2u);
  EXPECT_EQ(points(chart_of({1, 2, 3}, {1})), 1u);
  for (const double y : {1.0, 10.0, 3.0, 1e-16, 5e-324, 1e300, 0.5, 2.0})
    EXPECT_EQ(points(chart_of({1}, {y}, true)), 1u) << y;
  EXPECT_EQ(points(chart_of({1, 2}, {5e-324, 1e300}, true)), 2u);
}

TEST(Charts, gaps_break_the_line) {
  const std::string figure = drawn(chart_of({0, 1, 2, 3, 4}, {1, 2, kNan, 3, kInf}));
  EXPECT_NE(figure.find("NaN or infinite, so not drawn: 2 points."), std::string::npos);
  const std::size_t at = figure.rfind("<path class=\"l c0\" d=\"");
  const std::string path = figure.substr(at, figure.find("/>", at) - at);
  EXPECT_EQ(count(path, "M"), 2u);
  EXPECT_EQ(count(path, "L"), 1u);
}

TEST(Charts, zeros_on_a_log_axis_are_dropped_with_a_note) {
  const Chart chart = chart_of({0, 1, 2}, {0, 1e-3, -1}, true);
  EXPECT_EQ(points(chart), 1u);
  EXPECT_NE(drawn(chart).find("Zero or less, so not on the log axis: 2 points.</p>"), std::string::npos);
  Chart dots{.log_y = true, .kind = ChartKind::bar, .categories = {"a", "b"}};
  dots.series = {{"s", {}, {0, 1e-3}}};
  EXPECT_EQ(points(dots), 1u);
  EXPECT_EQ(count(drawn(dots), "<rect"), 0u);
  EXPECT_NE(drawn(dots).find("Zero or less, so not on the log axis: s, a.</p>"), std::string::npos);
}

// Names that differ in the middle alone.
TEST(Charts, long_labels_stay_apart) {
  Chart chart{.kind = ChartKind::bar};
  for (const char* head : {"0", "8", "16"})
    chart.categories.push_back(str("transition_rope_seam:head=", head, "@warm_segment"));
  chart.series = {{"s", {}, {1, 2, 3}}};
  const std::string figure = drawn(chart);
  EXPECT_EQ(count(figure, ">transition_rope_seam</text>"), 3u);
  EXPECT_EQ(count(figure, ">:head=8@warm_segment</text>"), 1u);
  EXPECT_EQ(count(figure, ">:head=16@warm_segment</text>"), 1u);
}

TEST(Tables, numbers_intervals_and_gaps_are_aligned_right) {
  Report report;
  report.results = {{.name = "r", .tables = {{"t", {"name", "ms", "95 %", "p90"},
                                              {{"a", 1.5, "1.2 – 1.4", "–"}, {"b", 2.5, "–", 3.5}}, "a note"}}}};
  const std::string page = to_html(report);
  for (const char* cell : {"<td class=\"n\">1.2 – 1.4</td>", "<td class=\"n\">–</td>", "<th class=\"n\">95 %</th>",
                           "<th class=\"n\">p90</th>", "<td>a</td>", "<p class=\"text\">a note</p>"})
    EXPECT_NE(page.find(cell), std::string::npos) << cell;
  EXPECT_NE(to_markdown(report).find("|---|---:|---:|---:|"), std::string::npos);
  EXPECT_EQ(report_from_json(to_json(report), "r").results, report.results);
}

TEST(Charts, ticks_are_round) {
  EXPECT_EQ(labels(drawn(chart_of({0, 47}, {0.1, 0.52}))),
            "0 10 20 30 40 50  0 0.1 0.2 0.3 0.4 0.5 0.6  ");
  EXPECT_EQ(labels(drawn(chart_of({1000, 1012}, {-3, 7}))),
            "1000 1002 1004 1006 1008 1010 1012  -4 -2 0 2 4 6 8  ");
  EXPECT_EQ(labels(drawn(chart_of({0, 1}, {3e-16, 2e-4}, true))),
            "0 0.2 0.4 0.6 0.8 1.0  1e-14 1e-12 1e-10 1e-8 1e-6 1e-4  ");
  EXPECT_EQ(labels(drawn(chart_of({0, 1}, {12, 290}, true))),
            "0 0.2 0.4 0.6 0.8 1.0  10 20 50 100 200 500  ");
}

TEST(Charts, many_points_get_few_markers) {
  std::vector<double> x(10000), y(10000, 1);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = i;
  EXPECT_LE(points(chart_of(x, y)), 16u);
}

TEST(Charts, bars_start_at_zero) {
  Chart chart{.kind = ChartKind::bar, .categories = {"a", "b", "c"}};
  chart.series = {{"s", {}, {-1, 2, kNan}}, {"t", {}, {3}}};
  const std::string figure = drawn(chart);
  EXPECT_EQ(count(figure, "<rect"), 3u);
  EXPECT_NE(figure.find("<title>t: a, 3</title>"), std::string::npos);
  for (const double value : {0.0, 1e-12, -4.0, 1e300})
    drawn({.kind = ChartKind::bar, .categories = {"a"}, .series = {{"", {}, {value}}}});
  drawn({.kind = ChartKind::bar, .categories = {"a"}});
  drawn({.kind = ChartKind::dot, .series = {{"", {}, {1, 2}}}});
}

RC_GTEST_PROP(Charts, any_numbers_are_drawn,
              (const std::vector<std::pair<double, double>>& pairs, bool log_x, bool log_y,
               bool bars, int scale)) {
  Chart chart{.log_y = log_y, .log_x = log_x, .kind = bars ? ChartKind::bar : ChartKind::line};
  Series series;
  for (const auto& [x, y] : pairs) {
    series.x.push_back(x);
    series.y.push_back(y * std::pow(10, scale % 320));
    chart.categories.push_back(str(x));
  }
  chart.series = {series, series};
  const std::string figure = chart_html(chart);
  RC_ASSERT(xml_fault(figure) == "");
  RC_ASSERT(figure.size() < 20000 + 2000 * pairs.size());
}

}  // namespace
}  // namespace hypic
