#include "reference/laws.h"

#include <algorithm>
#include <map>

#include "core/check.h"
#include "harness/driver.h"

namespace hypic {

// Parameters: families (all), styles (all), lengths ([0, 1, 3, 63, 64, 65]), seed.
// Values: error.FAMILY, the worst error of a law that bounds one; broken.FAMILY, laws that do not
// hold.
Result run_laws(const SuiteCase& suite_case, const std::string& where,
                const DriverContext& context) {
  using namespace reference;
  Parameters parameters(suite_case.parameters, where + ".parameters");
  std::vector<std::string> all_families, all_styles;
  for (const FamilyTraits& family : kFamilies) all_families.emplace_back(family.name);
  for (const Style style : kStyles) all_styles.emplace_back(name_of(style));
  const auto families = parameters.texts("families", all_families);
  const auto styles = parameters.texts("styles", all_styles);
  const auto lengths = parameters.integers("lengths", {0, 1, 3, 63, 64, 65}, 0, 4096);
  const uint64_t seed = static_cast<uint64_t>(parameters.integer("seed", 1, 0, INT64_MAX));
  parameters.refuse_others();

  std::vector<std::string> law_names;                       // columns, as they first appear
  std::map<std::string, std::map<std::string, Law>> worst;  // family → law
  std::map<std::string, int> broken;
  std::string first_broken;
  int64_t runs = 0;
  for (size_t f = 0; f < families.size(); ++f) {
    const FamilyTraits& family = family_named(families[f]);
    context.progress(static_cast<double>(f) / families.size(), families[f]);
    const auto reference_family = make_family(family.family);
    for (const std::string& style_name : styles) {
      const auto style = std::find_if(kStyles.begin(), kStyles.end(),
                                      [&](Style s) { return name_of(s) == style_name; });
      require(style != kStyles.end(), where, ".parameters.styles: \"", style_name, "\" is unknown");
      for (const int64_t T : lengths) {
        const Dims dims{T, 2, 4, 8, 12, 3};  // grouped value heads, d_k ≠ d_v
        for (const Law& law : check_laws(*reference_family, dims, *style, seed + T)) {
          if (!law.applies) continue;
          ++runs;
          if (std::find(law_names.begin(), law_names.end(), law.name) == law_names.end())
            law_names.push_back(law.name);
          auto [entry, fresh] = worst[families[f]].emplace(law.name, law);
          Law& kept = entry->second;
          if (!fresh && (law.differs ? law.error < kept.error : law.error > kept.error)) kept = law;
          if (law.holds()) continue;
          ++broken[families[f]];
          if (first_broken.empty())
            first_broken = str(families[f], ", ", law.name, ", style ", style_name, ", T = ", T,
                               ": ", law.error);
        }
      }
    }
  }

  Result result;
  result.verdict = Verdict::pass;
  Table table{"Worst error of each law", {"family", "decay", "update", "readout"}, {}};
  table.heads.insert(table.heads.end(), law_names.begin(), law_names.end());
  for (const std::string& name : families) {
    const FamilyTraits& family = family_named(name);
    std::vector<Cell> row = {name, std::string(name_of(family.decay)),
                             std::string(name_of(family.update)),
                             std::string(name_of(family.readout))};
    double error = 0;
    for (const std::string& law_name : law_names) {
      const auto law = worst[name].find(law_name);
      if (law == worst[name].end()) {
        row.emplace_back("–");
        continue;
      }
      const bool holds = law->second.holds();
      row.emplace_back(law->second.error, Format::scientific, 1, holds ? Mark::none : Mark::bad);
      if (!law->second.differs) error = std::max(error, law->second.error);
    }
    table.rows.push_back(std::move(row));
    result.values.push_back({"error." + name, error, "relative"});
    result.values.push_back({"broken." + name, static_cast<double>(broken[name]), "laws"});
  }
  result.tables.push_back(std::move(table));
  result.note =
      str(runs, " checks: every law of every family for ", styles.size(), " kinds of input and ",
          lengths.size(),
          " lengths, in float64; bounds are 1e-12. Columns that begin with \"not\" or "
          "\"differs\" show the smallest difference between things that must not be equal.");
  if (!first_broken.empty()) {
    result.verdict = Verdict::fail;
    result.why = "broken: " + first_broken;
  }
  return result;
}

}  // namespace hypic
