// A suite: cases, each a driver with parameters, and what they must show. JSON; see
// suites/schema.json.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

namespace hypic {

// What a value must be. A tag may end in * and then holds for every value that begins so.
struct Expectation {
  std::string tag;
  std::string relation;  // "<=", "<", ">=", ">", "==", "within": |measured − value| ≤ tolerance
  double value = 0;
  double tolerance = 0;
  std::string source;  // where the expectation comes from
  // Of these alone; elsewhere the value is shown and not judged. Empty: of any.
  std::string only_model;  // a model's name, whatever its case: qwen3.5-35b-a3b
  std::string only_gpu;    // whole words of the GPU's name: H200
};

struct SuiteCase {
  std::string name;
  std::string driver;
  std::string note;
  nlohmann::json parameters = nlohmann::json::object();
  std::vector<Expectation> expectations;
  double seconds = 0;  // that it takes about, where the suite says so
  double gpu_seconds = 0;  // the same on a GPU; 0: as `seconds`
};

struct Suite {
  std::string path;
  std::string title;
  std::string description;
  std::string seconds_on;  // the machine that its seconds are of, "an H200"; empty: of any
  std::vector<SuiteCase> cases;
};

// Error: file, place (cases[2].expect[0].relation) and reason; unknown keys and drivers are
// refused.
Suite load_suite(const std::string& path);

// The parameters of a case, read once each: a missing one takes its default, one of another type or
// out of range, or one that nothing reads, is an Error with its place.
class Parameters {
 public:
  Parameters(const nlohmann::json& json, std::string where)
      : json_(json), where_(std::move(where)) {}

  int64_t integer(const std::string& key, int64_t fallback, int64_t low, int64_t high);
  double number(const std::string& key, double fallback, double low, double high);
  std::string text(const std::string& key, const std::string& fallback);
  std::vector<std::string> texts(const std::string& key, const std::vector<std::string>& fallback);
  std::vector<int64_t> integers(const std::string& key, const std::vector<int64_t>& fallback,
                                int64_t low, int64_t high);
  std::vector<double> numbers(const std::string& key, const std::vector<double>& fallback);
  // Where a key is, for errors.
  std::string place(const std::string& key) const { return where_ + "." + key; }
  // Call when all have been read.
  void refuse_others() const;

 private:
  const nlohmann::json* find(const std::string& key);
  const nlohmann::json& json_;
  std::string where_;
  std::vector<std::string> read_;
};

}  // namespace hypic
