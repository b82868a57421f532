// Drivers run a case of a suite and return what they measured; the runner judges it.
#pragma once

#include <functional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "core/check.h"
#include "harness/suite.h"
#include "reports/item_log.h"
#include "reports/report.h"

namespace hypic {

// Called as work proceeds, with a share in [0, 1] and what is at hand; may throw Interrupted.
using ProgressFn = std::function<void(double, const std::string&)>;

// Thrown out of a case when the user asks to stop.
struct Interrupted {};

// Thrown out of a case that asks for more than this machine has: SKIP.
struct MachineLacks : Error {
  using Error::Error;
};

struct DriverContext {
  std::string data;   // --data: a LongBench file, or a folder of them; empty: the project's own text
  std::string model;  // --model: replaces the model of every case; empty: the suite's
  std::string backend;  // --backend: replaces the backend of every case; empty: the suite's
  std::vector<int> devices = {};  // --tensor-parallel: one a rank, in place of the suite's; empty: the suite's
  std::string logits;   // --logits: reference logits of the model; empty: none
  ProgressFn progress = {};  // while a case is prepared, of what takes long there; empty: nobody listens
  bool* data_used = nullptr;  // set by a case that reads `data`
  // Of a dry run: hears of backends that this machine has no GPU for, each with the reason, which is no error then.
  std::set<std::string>* no_gpu = nullptr;
  ItemLog* items = nullptr;   // where a case keeps its items, open once it runs; nullptr: nowhere
};

// A case whose parameters have been read and found good. It fills values, tables, charts and note; a verdict
// other than PASS (with a reason) stands whatever the expectations say. What it gives as the reason of a PASS is
// shown where nothing is asked.
using Work = std::function<Result(const ProgressFn&)>;

struct Driver {
  std::string_view name;
  std::string_view what;
  // Error, beginning with `where`, for parameters, models and data that cannot be used.
  Work (*prepare)(const SuiteCase& suite_case, const std::string& where,
                  const DriverContext& context);
};

const std::vector<Driver>& drivers();
const Driver* find_driver(std::string_view name);  // nullptr where unknown

// The backend that a case names, or that replaces it; empty: the driver's own.
std::string backend_of(const SuiteCase& suite_case, const DriverContext& context);

// Whether it can be made here: Error as of make_backend, but for a GPU that is not there where the context asks for
// none.
void require_backend(const std::string& backend, const DriverContext& context);

// What a case runs on, as far as expectations ask.
struct Subject {
  std::string model;  // its name, such as qwen3.5-35b-a3b; the default's where the case names none; empty: none such
  std::string gpu;    // "NVIDIA H200"; empty: the backend uses none
};
Subject subject_of(const SuiteCase& suite_case, const DriverContext& context);

// Runs a prepared case and judges it: every expectation of this subject becomes a Check. FAIL where one does
// not hold or the work breaks an invariant of ours; INVALID where the input turned out bad on the way or an
// expectation names no value; MEASURED where nothing was asked of this subject.
Result run_case(const SuiteCase& suite_case, const Work& work, const ProgressFn& progress,
                const Subject& subject = {});

}  // namespace hypic
