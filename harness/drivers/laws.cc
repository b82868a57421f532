#include "reference/laws.h"

#include <algorithm>
#include <map>

#include "core/check.h"
#include "harness/driver.h"
#include "harness/measure/distance.h"

namespace hypic {

namespace {

using namespace reference;

struct LawsCase {
  std::vector<const FamilyTraits*> families;
  std::vector<Style> styles;
  std::vector<int64_t> lengths;
  uint64_t seed = 1;
};

// Both tables begin with the family's place; a dash stands for a law that does not apply to it.
Table law_table(const std::string& title, const std::vector<std::string>& laws) {
  Table table{title, {"family", "decay", "update", "readout"}, {}};
  table.heads.insert(table.heads.end(), laws.begin(), laws.end());
  return table;
}

Result run(const LawsCase& c, const ProgressFn& progress) {
  std::vector<std::string> equalities, differences;         // columns, as they first appear
  std::map<std::string, std::map<std::string, Law>> worst;  // family → law
  std::map<std::string, int> broken;
  std::string first_broken;
  int64_t runs = 0;
  for (size_t f = 0; f < c.families.size(); ++f) {
    const std::string name(c.families[f]->name);
    progress(static_cast<double>(f) / static_cast<double>(c.families.size()), name);
    const auto family = make_family(c.families[f]->family);
    for (const Style style : c.styles) {
      for (const int64_t T : c.lengths) {
        const Dims dims{T, 2, 4, 8, 12, 3};  // grouped value heads, d_k ≠ d_v
        for (const Law& law : check_laws(*family, dims, style, c.seed + static_cast<uint64_t>(T))) {
          if (!law.applies) continue;
          ++runs;
          auto& columns = law.differs ? differences : equalities;
          if (std::find(columns.begin(), columns.end(), law.name) == columns.end())
            columns.push_back(law.name);
          auto [entry, fresh] = worst[name].emplace(law.name, law);
          Law& kept = entry->second;
          if (!fresh) {
            kept.error = law.differs ? -worse(-kept.error, -law.error) : worse(kept.error, law.error);
          }
          if (law.holds()) continue;
          ++broken[name];
          if (first_broken.empty())
            first_broken = str(name, ", ", law.name, ", style ", name_of(style), ", length ", T, ": ",
                               law.error);
        }
      }
    }
  }

  Result result;
  result.verdict = Verdict::pass;
  Table equal = law_table("Laws: the largest error of each, at most 1e-12", equalities);
  Table differ = law_table("Differences that must not vanish: the smallest of each, more than 1e-3", differences);
  for (const FamilyTraits* family : c.families) {
    const std::string name(family->name);
    const auto add_row = [&](Table& table, const std::vector<std::string>& laws) {
      std::vector<Cell> row = {name, std::string(name_of(family->decay)),
                               std::string(name_of(family->update)),
                               std::string(name_of(family->readout))};
      for (const std::string& law_name : laws) {
        const auto law = worst[name].find(law_name);
        if (law == worst[name].end())
          row.emplace_back("–");
        else
          row.emplace_back(law->second.error, Format::scientific, 1,
                           law->second.holds() ? Mark::none : Mark::bad);
      }
      table.rows.push_back(std::move(row));
    };
    add_row(equal, equalities);
    add_row(differ, differences);
    double error = 0;
    for (const auto& [law_name, law] : worst[name])
      if (!law.differs) error = worse(error, law.error);
    result.values.push_back({"error." + name, error, "relative"});
    result.values.push_back({"broken." + name, static_cast<double>(broken[name]), "laws"});
  }
  result.tables = {std::move(equal), std::move(differ)};
  result.note =
      str(runs, " checks in float64, for ", c.styles.size(), " kinds of input and ", c.lengths.size(),
          " lengths. A dash: the law does not apply to the family. ttt_linear is not affine in its state "
          "(the defect is shown), so no operator exists for it and it cannot be reused this way.");
  if (!first_broken.empty()) {
    result.verdict = Verdict::fail;
    result.why = "broken: " + first_broken;
  }
  return result;
}

}  // namespace

// Parameters: families (all), styles (all), lengths ([0, 1, 3, 63, 64, 65]), seed (1).
// Values: error.FAMILY, the largest error of a law that bounds one; broken.FAMILY, laws that do not hold.
Work prepare_laws(const SuiteCase& suite_case, const std::string& where, const DriverContext&) {
  Parameters parameters(suite_case.parameters, where + ".parameters");
  LawsCase c;
  std::vector<std::string> families, styles;
  for (const FamilyTraits& family : kFamilies) families.emplace_back(family.name);
  for (const Style style : kStyles) styles.emplace_back(name_of(style));
  for (const std::string& name : parameters.texts("families", families))
    c.families.push_back(&family_named(name));
  for (const std::string& name : parameters.texts("styles", styles)) {
    const auto style = std::find_if(kStyles.begin(), kStyles.end(),
                                    [&](Style s) { return name_of(s) == name; });
    require(style != kStyles.end(), where, ".parameters.styles: \"", name, "\" is unknown");
    c.styles.push_back(*style);
  }
  c.lengths = parameters.integers("lengths", {0, 1, 3, 63, 64, 65}, 0, 4096);
  c.seed = static_cast<uint64_t>(parameters.integer("seed", 1, 0, INT64_MAX));
  parameters.refuse_others();
  return [c](const ProgressFn& progress) { return run(c, progress); };
}

}  // namespace hypic
