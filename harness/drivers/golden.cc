#include "harness/cases/golden.h"

#include <algorithm>

#include "core/check.h"
#include "harness/driver.h"
#include "reports/text.h"

namespace hypic {
namespace {

struct Selection {
  std::string folder, outputs, definition, compute;
};

Result run(const Selection& s, const std::vector<golden::Workload>& workloads, const ProgressFn& progress) {
  Result result;
  result.verdict = Verdict::pass;
  Table table{str("Outputs of ", s.definition, " against float64: the comparison nearest to its bound"),
              {"workload", "tensor", "RMS ratio", "bound", "max abs", "1 − cosine", "verdict"},
              {}};
  int64_t missing = 0, failed = 0, checks = 0;
  double worst = 0, done = 0;
  for (const golden::Workload& workload : workloads) {
    progress(done++ / static_cast<double>(workloads.size()), workload.uuid);
    const golden::Verdict v = golden::check(s.folder, s.outputs, workload, s.compute);
    if (!v.there) {
      ++missing;
      table.rows.push_back({workload.uuid, "–", "", "", "", "", Cell("no output", Mark::bad)});
      continue;
    }
    for (const auto& [name, c] : {std::pair{"o", v.o}, {"S", v.S}}) {
      ++checks;
      const bool wrong = !c.wrong.empty();
      failed += wrong;
      if (c.bound > 0) worst = std::max(worst, c.rms / c.bound);
      if (wrong && result.why.empty()) result.why = str(workload.uuid, ", ", name, ": ", c.wrong);
      table.rows.push_back({workload.uuid, name, Cell(c.rms, Format::scientific), Cell(c.bound, Format::scientific),
                            Cell(c.max_abs, Format::scientific), Cell(1 - c.cosine, Format::scientific),
                            wrong ? Cell(c.wrong, Mark::bad) : Cell("pass", Mark::good)});
    }
  }
  result.values = {{"checks", static_cast<double>(checks), "checks"},
                   {"failed", static_cast<double>(failed), "checks"},
                   {"missing", static_cast<double>(missing), "workloads"},
                   {"worst", worst, "of its bound"}};
  result.tables.push_back(std::move(table));
  if (checks == 0) {
    result.verdict = Verdict::skip;
    result.why = "no outputs";
  } else if (failed > 0 || missing > 0) {
    result.verdict = Verdict::fail;
    if (failed > 1) result.why += str(" (", failed, " of ", checks, " fail)");
    if (missing > 0)
      result.why += str(failed ? "; " : "", missing, " of ", workloads.size(), " workloads have no output");
  }
  return result;
}

}  // namespace

// Parameters: folder, as hypic golden export leaves it; outputs (FOLDER/outputs); definition, whose workloads; compute
// (the coarser dtype of an output's tensors). Values: checks, failed (of them), missing (workloads without output),
// worst (the largest share of its bound).
Work prepare_golden(const SuiteCase& suite_case, const std::string& where, const DriverContext&) {
  Parameters parameters(suite_case.parameters, where + ".parameters");
  Selection s;
  s.folder = parameters.text("folder", "");
  s.outputs = parameters.text("outputs", s.folder + "/outputs");
  s.definition = parameters.text("definition", "");
  s.compute = parameters.text("compute", "");
  parameters.refuse_others();
  std::vector<golden::Workload> workloads = golden::read_workloads(s.folder);
  std::erase_if(workloads, [&](const golden::Workload& w) { return w.definition != s.definition; });
  require(!workloads.empty(), where, ".parameters.definition: \"", s.definition, "\" has no workload in ", s.folder);
  return [s, workloads](const ProgressFn& progress) { return run(s, workloads, progress); };
}

}  // namespace hypic
