#include "harness/driver.h"

#include <algorithm>
#include <cctype>
#include <chrono>
#include <cmath>
#include <limits>
#include <map>
#include <new>

#include "core/check.h"
#include "harness/backends.h"
#include "harness/model_choice.h"
#include "kernels/device.h"
#include "models/model.h"
#include "reports/text.h"

namespace hypic {

#define HYPIC_DRIVER(name, what)                                             \
  Work prepare_##name(const SuiteCase& suite_case, const std::string& where, \
                      const DriverContext& context);
#include "harness/drivers/drivers.def"
#undef HYPIC_DRIVER

const std::vector<Driver>& drivers() {
  static const std::vector<Driver> all = {
#define HYPIC_DRIVER(name, what) {#name, what, prepare_##name},
#include "harness/drivers/drivers.def"
#undef HYPIC_DRIVER
  };
  return all;
}

const Driver* find_driver(std::string_view name) {
  for (const Driver& driver : drivers())
    if (driver.name == name) return &driver;
  return nullptr;
}

namespace {

bool holds(const Expectation& e, double measured) {
  if (e.relation == "<=") return measured <= e.value;
  if (e.relation == "<") return measured < e.value;
  if (e.relation == ">=") return measured >= e.value;
  if (e.relation == ">") return measured > e.value;
  if (e.relation == "==") return measured == e.value;
  HYPIC_CHECK(e.relation == "within", e.relation);
  return std::abs(measured - e.value) <= e.tolerance;
}

bool matches(const std::string& pattern, const std::string& tag) {
  if (pattern.ends_with('*')) return tag.starts_with(pattern.substr(0, pattern.size() - 1));
  return tag == pattern;
}

// Whether `words` stand in `text`, whole: H20 does not in H200.
bool holds_words(const std::string& text, const std::string& words) {
  const auto inside = [&](size_t i) { return i < text.size() && std::isalnum(static_cast<unsigned char>(text[i])); };
  for (size_t at = text.find(words); at != text.npos; at = text.find(words, at + 1))
    if (words.empty() || ((at == 0 || !inside(at - 1)) && !inside(at + words.size()))) return true;
  return false;
}

// "" where an expectation is of this subject, else of what it is.
std::string other_subject(const Expectation& e, const Subject& subject) {
  const auto same = [](char a, char b) {
    return std::tolower(static_cast<unsigned char>(a)) == std::tolower(static_cast<unsigned char>(b));
  };
  const std::string &name = subject.model, &wanted = e.only_model;
  if (!wanted.empty() && !std::equal(name.begin(), name.end(), wanted.begin(), wanted.end(), same)) return wanted;
  return holds_words(subject.gpu, e.only_gpu) ? "" : e.only_gpu;
}

// One check an expectation; a pattern is judged by its worst value, which the check names.
Check judge(const Expectation& e, const std::vector<Value>& values) {
  Check check{e.tag, e.relation, e.value, e.tolerance, std::numeric_limits<double>::quiet_NaN(),
              false, e.source};
  const auto distance = [&](double x) {  // how far on the wrong side
    if (std::isnan(x)) return std::numeric_limits<double>::infinity();
    if (e.relation == "<=" || e.relation == "<") return x - e.value;
    if (e.relation == ">=" || e.relation == ">") return e.value - x;
    return std::abs(x - e.value);
  };
  bool found = false;
  double worst = 0;
  for (const Value& value : values) {
    if (!matches(e.tag, value.tag)) continue;
    const double d = distance(value.value);
    if (found && d <= worst) continue;
    found = true;
    worst = d;
    check.measured = value.value;
    check.holds = holds(e, value.value);
    if (e.tag.ends_with('*')) check.tag = e.tag + " (worst: " + value.tag + ")";
  }
  return check;
}

// "" where it is none.
std::string text_parameter(const SuiteCase& suite_case, const char* key) {
  const auto found = suite_case.parameters.find(key);
  return found != suite_case.parameters.end() && found->is_string() ? found->get<std::string>() : "";
}

void judge_all(const SuiteCase& suite_case, const Subject& subject, Result& result) {
  int broken = 0;
  std::map<std::string, int> others;  // expectations of other models and GPUs
  for (const Expectation& e : suite_case.expectations) {
    if (const std::string other = other_subject(e, subject); !other.empty()) {
      ++others[other];
      continue;
    }
    const bool named = std::any_of(result.values.begin(), result.values.end(),
                                   [&](const Value& value) { return matches(e.tag, value.tag); });
    result.checks.push_back(judge(e, result.values));
    const Check& check = result.checks.back();
    if (!named) {
      result.verdict = Verdict::invalid;
      result.why = str("the suite asks for ", e.tag, ", which names no value; the case gives ",
                       result.values.empty() ? "none" : result.values.front().tag, ", …");
      return;
    }
    if (check.holds) continue;
    if (broken++ == 0)
      result.why =
          str(check.tag, " = ", format_number(check.measured), ", expected ", e.relation, " ", format_number(e.value));
  }
  if (broken > 0) result.verdict = Verdict::fail;
  if (broken > 1) result.why += str(" (and ", broken - 1, " more)");
  const size_t n = result.checks.size();
  if (n == 0) {
    result.verdict = Verdict::measured;
    if (result.why.empty()) result.why = "nothing asked";  // else what the driver has to say in short
  } else if (broken == 0) {
    result.why =
        str(n, n == 1 ? " expectation holds" : " expectations hold", result.why.empty() ? "" : "; ", result.why);
  }
  for (const auto& [other, count] : others)
    result.why += str("; ", count, count == 1 ? " is" : " are", " asked of ", other, " alone");
}

}  // namespace

std::string backend_of(const SuiteCase& suite_case, const DriverContext& context) {
  return context.backend.empty() ? text_parameter(suite_case, "backend") : context.backend;
}

void require_backend(const std::string& backend, const DriverContext& context) {
  std::string why_none;
  if (context.no_gpu && on_gpu(backend) && gpus(&why_none).empty())
    context.no_gpu->insert(str(backend, ": ", why_none));
  else
    make_backend(backend);
}

Subject subject_of(const SuiteCase& suite_case, const DriverContext& context) {
  Subject subject;
  std::string model = context.model.empty() ? text_parameter(suite_case, "model") : context.model;
  if (model.empty()) model = kDefaultModel;
  try {
    subject.model = spec_of(model_path(model)).name;
  } catch (const Error&) {  // the case itself says what is wrong with it
  }
  if (!backend_of(suite_case, context).starts_with("cuda")) return subject;
  std::string why_none;
  const std::vector<GpuInfo> all = gpus(&why_none);
  if (!all.empty()) subject.gpu = all[0].name;
  return subject;
}

Result run_case(const SuiteCase& suite_case, const Work& work, const ProgressFn& progress,
                const Subject& subject) {
  const auto start = std::chrono::steady_clock::now();
  Result result;
  const auto stopped = [&](Verdict verdict, const std::string& why) {
    result = {};
    result.verdict = verdict;
    result.why = why;
  };
  try {
    result = work(progress);
  } catch (const MachineLacks& error) {
    stopped(Verdict::skip, error.what());
  } catch (const Error& error) {
    stopped(Verdict::invalid, error.what());
  } catch (const std::bad_alloc&) {
    stopped(Verdict::invalid, "out of memory; use a smaller model or fewer tokens");
  } catch (const std::exception& error) {
    stopped(Verdict::fail, error.what());
  }
  result.name = suite_case.name;
  result.driver = suite_case.driver;
  if (!suite_case.note.empty())
    result.note = result.note.empty() ? suite_case.note : suite_case.note + "\n" + result.note;
  if (result.verdict == Verdict::pass) judge_all(suite_case, subject, result);
  result.seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return result;
}

}  // namespace hypic
