#include "harness/drivers/conformance.h"

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <optional>
#include <regex>

#include "core/check.h"
#include "harness/backends.h"
#include "harness/cases/broken.h"
#include "harness/cases/captured.h"
#include "harness/cases/family_case.h"
#include "harness/driver.h"
#include "harness/kernel_process.h"
#include "harness/pattern.h"
#include "reports/text.h"

namespace hypic {

namespace conformance {
namespace {

bool among(const std::vector<std::string>& names, const std::string& name) {
  return names.empty() || std::find(names.begin(), names.end(), name) != names.end();
}

std::string joined(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

double share(const Comparison& c) { return c.bound > 0 ? c.rms / c.bound : 0; }

// Of a backend with a plug-in: what it offers, and families that somebody names.
bool offered(const Selection& s, const Case& c) {
  if (kernel_process::library().empty()) return true;
  return kernel_process::offers(c.op, c.family.empty() || !s.families.empty() ? nullptr : &family_named(c.family));
}

Settings settings_of(const Selection& s, std::function<void()> tick) {
  return {.thorough = s.thorough, .tick = std::move(tick), .patience = s.thorough ? 3600 : 300};
}

Result run_cases(const Selection& s, const std::vector<Case>& cases, const ProgressFn& progress) {
  const auto backend = make_backend(s.backend);
  const int64_t before = kernel_process::calls();
  Result result;
  result.verdict = Verdict::pass;
  Table table{str("Cases on ", backend->name(),
                  ": the comparison nearest to its bound, largest difference, "
                  "smallest cosine"),
              {"case", "checks", "RMS ratio", "bound", "max abs", "1 − cosine", "s", "verdict"},
              {}};
  Table failures{kFailures, {"case", "operation", "what"}, {}};
  int64_t checks = 0, failed = 0;
  double worst = 0;
  for (size_t i = 0; i < cases.size(); ++i) {
    const Case& c = cases[i];
    const auto tick = [&] {
      progress(static_cast<double>(i) / static_cast<double>(cases.size()), c.name);
    };
    const auto start = std::chrono::steady_clock::now();
    const Findings f = run_case(c, *backend, settings_of(s, tick));
    const double seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    checks += f.checks;
    failed += f.failed > 0;
    worst = std::max(worst, share(f.worst));
    table.rows.push_back({c.name,
                          f.checks,
                          {f.worst.rms, Format::scientific},
                          {f.worst.bound, Format::scientific},
                          {f.max_abs, Format::scientific},
                          {1 - f.cosine, Format::scientific},
                          {seconds, Format::fixed, 2},
                          f.failed ? Cell(str(f.failed, " of ", f.checks, " fail"), Mark::bad)
                                   : Cell("pass", Mark::good)});
    for (const std::string& line : f.failures) failures.rows.push_back({c.name, c.op, line});
    if (f.failed > 0 && result.why.empty())
      result.why = str(c.name, ", ", c.op, ": ", f.failures.front());
  }
  result.values = {{"cases", static_cast<double>(cases.size()), "cases"},
                   {"checks", static_cast<double>(checks), "checks"},
                   {"failed", static_cast<double>(failed), "cases"},
                   {"worst", worst, "of its bound"}};
  result.tables.push_back(std::move(table));
  if (const auto launches = backend->launches(); !launches.empty()) {
    Table ran{"Kernels that ran", {"kernel", "launches"}, {}};
    for (const auto& [kernel, count] : launches) {
      ran.rows.push_back({kernel, count});
      result.values.push_back({"launches." + kernel, static_cast<double>(count), "launches"});
    }
    result.tables.push_back(std::move(ran));
  }
  if (!kernel_process::library().empty() && kernel_process::calls() == before) {
    result.verdict = Verdict::skip;
    result.why = "the kernel computed none of it";
  }
  if (failed > 0) {
    result.verdict = Verdict::fail;
    if (failed > 1) result.why += str(" (", failed, " cases fail)");
    result.tables.push_back(std::move(failures));
  }
  return result;
}

// The first selected case that a fault class does not pass.
struct Caught {
  std::string by, line;
  Comparison worst;
};

std::optional<Caught> hunt(const FaultClass& fault, const std::vector<Case>& cases,
                           const Settings& settings) {
  const std::regex looks = pattern_of("filter", fault.cases);
  for (const Case& c : cases) {
    if (!std::regex_search(c.name, looks)) continue;
    const auto backend = make_broken_backend(fault.name);
    const Findings f = run_case(c, *backend, settings);
    if (f.failed > 0) return Caught{c.name, f.failures.front(), f.worst};
  }
  return std::nullopt;
}

Result run_broken(const Selection& s, const std::vector<Case>& cases, const ProgressFn& progress) {
  Result result;
  result.verdict = Verdict::pass;
  Table table{
      "Fault classes and the case that notices each",
      {"fault class", "what is broken", "reported", "caught by", "RMS ratio", "bound", "how"},
      {}};
  const std::vector<FaultClass>& all = fault_classes();
  int64_t count = 0, missed = 0;
  for (size_t i = 0; i < all.size(); ++i) {
    const FaultClass& fault = all[i];
    if (s.broken != "all" && s.broken != fault.name) continue;
    ++count;
    const auto tick = [&] {
      progress(static_cast<double>(i) / static_cast<double>(all.size()), fault.name);
    };
    const std::optional<Caught> caught = hunt(fault, cases, settings_of(s, tick));
    std::vector<Cell> row = {fault.name, fault.what,
                             fault.reported ? str("D", fault.reported) : "–"};
    if (caught) {
      row.insert(row.end(),
                 {Cell(caught->by, Mark::good), Cell(caught->worst.rms, Format::scientific),
                  Cell(caught->worst.bound, Format::scientific), Cell(caught->line)});
    } else {
      ++missed;
      if (result.why.empty()) result.why = str("no case notices ", fault.name, ": ", fault.what);
      row.emplace_back("nothing", Mark::bad);
    }
    table.rows.push_back(std::move(row));
  }
  result.values = {{"fault_classes", static_cast<double>(count), "classes"},
                   {"missed", static_cast<double>(missed), "classes"}};
  result.tables.push_back(std::move(table));
  if (missed > 0) result.verdict = Verdict::fail;
  return result;
}

SuiteCase part_of(const Selection& s, const std::string& name, const nlohmann::json& part) {
  SuiteCase c;
  c.name = name;
  c.driver = "conformance";
  c.parameters = {{"backend", s.backend}, {"effort", s.thorough ? "thorough" : "quick"}};
  if (!s.filter.empty()) c.parameters["filter"] = s.filter;
  c.parameters.update(part);
  c.expectations = {{.tag = s.broken.empty() ? "failed" : "missed",
                     .relation = "==",
                     .value = 0,
                     .source = "docs/conformance.md"}};
  return c;
}

}  // namespace

std::vector<Case> selected(const Selection& s, const DriverContext& context) {
  for (const std::string& name : s.families) {
    const FamilyTraits& traits = family_named(name);
    const std::string no_cell = conformance::case_of(traits.family).no_cell;
    require(no_cell.empty(), name, ": ", no_cell);
  }
  for (const std::string& op : s.ops)
    require(among(operations(), op), "unknown operation \"", op,
            "\"; known: ", joined(operations()));
  if (!s.broken.empty()) {
    require(kernel_process::library().empty(), "broken: judges backends of its own, not a kernel; leave --kernel out");
    if (s.broken != "all") fault_class(s.broken);
  }
  require_backend(s.backend, context);
  if (!s.captured.empty()) {
    require(s.families.size() == 1, "captured: name the one family that the activations are of, as in --family kda");
    return {captured_case(s.captured, s.families[0])};
  }
  const std::regex filter = pattern_of("filter", s.filter);
  std::vector<Case> cases;
  for (const Case& c : all_cases())
    if (among(s.ops, c.op) &&
        (s.families.empty() || (!c.family.empty() && among(s.families, c.family))) &&
        std::regex_search(c.name, filter) && offered(s, c))
      cases.push_back(c);
  const auto asked = [](const char* of, const std::vector<std::string>& names) {
    return names.empty() ? std::string() : of + joined(names);
  };
  require(!cases.empty(), "no case", asked(" of family ", s.families), asked(" of operation ", s.ops),
          s.filter.empty() ? "" : " has a name that matches \"" + s.filter + "\"",
          kernel_process::library().empty() ? "" : " among those of what the kernel offers",
          s.filter.empty() ? "; --list shows them" : "");
  return cases;
}

Suite suite_of(const Selection& s) {
  Suite suite;
  suite.path = "conformance";
  suite.title = "hypic conformance of " + (s.broken.empty() ? s.backend : "the suite itself");
  suite.description = s.broken.empty()
                          ? "Operations of a backend against oracles in float64; how bounds come "
                            "about: docs/conformance.md."
                          : "Backends that are wrong on purpose, and the case that notices each.";
  const std::vector<Case> cases = selected(s);
  if (!s.broken.empty()) {
    suite.cases = {part_of(s, "broken backends are noticed", {{"broken", s.broken}})};
  } else if (!s.captured.empty()) {
    suite.cases = {part_of(s, s.families[0] + ", captured",
                           {{"captured", s.captured}, {"families", s.families}})};
  } else {
    for (const Case& c : cases) {
      const std::string name = c.family.empty() ? c.op : c.family;
      const auto same = [&](const SuiteCase& other) { return other.name == name; };
      if (std::any_of(suite.cases.begin(), suite.cases.end(), same)) continue;
      suite.cases.push_back(part_of(s, name,
                                    c.family.empty() ? nlohmann::json{{"ops", {c.op}}}
                                                     : nlohmann::json{{"families", {c.family}}}));
    }
  }
  return suite;
}

}  // namespace conformance

// Parameters: backend (cpu), families (all), ops (all), filter (a regular expression over the names
// of cases), effort ("quick", or "thorough": the exact sizes of reported faults), captured (a file
// of activations; families then names their family), broken (a fault class, or all). Values: cases,
// checks, failed (cases), worst (the largest share of its bound that a comparison reached); with
// broken: fault_classes, missed.
Work prepare_conformance(const SuiteCase& suite_case, const std::string& where,
                         const DriverContext& context) {
  Parameters parameters(suite_case.parameters, where + ".parameters");
  conformance::Selection s;
  s.backend = parameters.text("backend", s.backend);
  if (!context.backend.empty()) s.backend = context.backend;
  s.families = parameters.texts("families", {});
  s.ops = parameters.texts("ops", {});
  s.filter = parameters.text("filter", "");
  const std::string effort = parameters.text("effort", "quick");
  require(effort == "quick" || effort == "thorough", where,
          ".parameters.effort: must be quick or thorough, is \"", effort, "\"");
  s.thorough = effort == "thorough";
  s.captured = parameters.text("captured", "");
  s.broken = parameters.text("broken", "");
  parameters.refuse_others();
  const std::vector<conformance::Case> cases = conformance::selected(s, context);
  return [s, cases](const ProgressFn& progress) {
    return s.broken.empty() ? conformance::run_cases(s, cases, progress)
                            : conformance::run_broken(s, cases, progress);
  };
}

}  // namespace hypic
