#include "harness/suite.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <filesystem>
#include <set>

#include "core/check.h"
#include "core/file.h"
#include "core/json.h"
#include "harness/driver.h"
#include "models/spec.h"

namespace hypic {
namespace {

using nlohmann::json;

constexpr size_t kMaxSuite = 16 << 20;
constexpr size_t kMaxCases = 1000;
constexpr double kMaxSeconds = 1e7;  // of a case: four months

// An object with only the given keys; a place is "suites/quick.json: cases[2]".
void check_object(const json& object, const std::string& place, const std::set<std::string>& keys) {
  require(object.is_object(), place, ": must be an object, is ", object.type_name());
  std::string known;
  for (const std::string& key : keys) known += str(known.empty() ? "" : ", ", key);
  for (const auto& [key, value] : object.items())
    require(keys.contains(key), place, ": unknown key \"", key, "\"; known: ", known);
}

std::string text(const json& object, const char* key, const std::string& place, bool needed) {
  const auto value = object.find(key);
  if (value == object.end()) {
    require(!needed, place, ".", key, ": is missing");
    return "";
  }
  require(value->is_string(), place, ".", key, ": must be a string, is ", value->type_name());
  require(!needed || !value->get_ref<const std::string&>().empty(), place, ".", key, ": is empty");
  return *value;
}

double number(const json& object, const char* key, const std::string& place,
              std::optional<double> fallback) {
  const auto value = object.find(key);
  if (value == object.end()) {
    require(fallback.has_value(), place, ".", key, ": is missing");
    return *fallback;
  }
  require(value->is_number(), place, ".", key, ": must be a number, is ", value->type_name());
  return *value;
}

Expectation parse_expectation(const json& object, const std::string& place) {
  check_object(object, place, {"tag", "relation", "value", "tolerance", "source", "only_model", "only_gpu"});
  Expectation e;
  e.tag = text(object, "tag", place, true);
  require(e.tag.find('*') >= e.tag.size() - 1, place, ".tag: a * may only stand at the end");
  e.relation = text(object, "relation", place, true);
  static const std::set<std::string> relations = {"<=", "<", ">=", ">", "==", "within"};
  require(relations.contains(e.relation), place, ".relation: \"", e.relation,
          "\" is unknown; known: <=, <, >=, >, ==, within");
  e.value = number(object, "value", place, std::nullopt);
  e.tolerance = number(object, "tolerance", place,
                       e.relation == "within" ? std::nullopt : std::optional(0.0));
  require(e.tolerance >= 0, place, ".tolerance: is negative");
  require(e.relation == "within" || e.tolerance == 0, place,
          ".tolerance: only \"within\" takes one");
  e.source = text(object, "source", place, false);
  e.only_model = text(object, "only_model", place, false);
  e.only_gpu = text(object, "only_gpu", place, false);
  return e;
}

// What is asked of a model that there is not is never asked. A model is a named one, or the case's own folder.
void check_models(const SuiteCase& c, const std::string& place) {
  const auto lower = [](std::string text) {
    for (char& x : text) x = static_cast<char>(std::tolower(static_cast<unsigned char>(x)));
    return text;
  };
  const auto model = c.parameters.find("model");
  const std::string folder = model != c.parameters.end() && model->is_string()
                                 ? std::filesystem::path(model->get<std::string>()).lexically_normal().filename()
                                 : "";
  for (size_t i = 0; i < c.expectations.size(); ++i) {
    const std::string name = lower(c.expectations[i].only_model);
    if (name.empty() || name == lower(folder)) continue;
    try {
      spec_named(name);
    } catch (const Error& error) {
      fail(place, ".expect[", i, "].only_model: ", error.what());
    }
  }
}

SuiteCase parse_case(const json& object, const std::string& place) {
  check_object(object, place, {"name", "driver", "note", "seconds", "gpu_seconds", "parameters", "expect"});
  SuiteCase c;
  c.name = text(object, "name", place, true);
  require(std::none_of(c.name.begin(), c.name.end(), [](unsigned char x) { return x < 0x20 || x == 0x7f; }),
          place, ".name: holds control characters");
  c.driver = text(object, "driver", place, true);
  c.note = text(object, "note", place, false);
  for (const auto& [key, member] :
       {std::pair{"seconds", &SuiteCase::seconds}, {"gpu_seconds", &SuiteCase::gpu_seconds}}) {
    c.*member = number(object, key, place, 0);
    require(c.*member >= 0, place, ".", key, ": is negative");
    require(c.*member <= kMaxSeconds, place, ".", key, ": must be at most ", kMaxSeconds, ", is ", c.*member);
  }
  std::string known;
  for (const Driver& driver : drivers()) known += str(known.empty() ? "" : ", ", driver.name);
  require(find_driver(c.driver) != nullptr, place, ".driver: \"", c.driver,
          "\" is unknown; known: ", known);
  if (object.contains("parameters")) {
    c.parameters = object["parameters"];
    require(c.parameters.is_object(), place, ".parameters: must be an object, is ",
            c.parameters.type_name());
  }
  if (object.contains("expect")) {
    require(object["expect"].is_array(), place, ".expect: must be an array, is ",
            object["expect"].type_name());
    for (size_t i = 0; i < object["expect"].size(); ++i)
      c.expectations.push_back(
          parse_expectation(object["expect"][i], str(place, ".expect[", i, "]")));
    check_models(c, place);
  }
  return c;
}

}  // namespace

Suite load_suite(const std::string& path) {
  const json root = parse_json(read_file(path, kMaxSuite), path);
  check_object(root, path, {"$schema", "title", "description", "seconds_on", "cases"});
  Suite suite;
  suite.path = path;
  suite.title = text(root, "title", path + ": suite", true);
  suite.description = text(root, "description", path + ": suite", false);
  suite.seconds_on = text(root, "seconds_on", path + ": suite", false);
  require(root.contains("cases") && root["cases"].is_array() && !root["cases"].empty(), path,
          ": cases: must be an array with at least one case");
  require(root["cases"].size() <= kMaxCases, path, ": cases: ", root["cases"].size(), " are too many, at most ",
          kMaxCases);
  std::set<std::string> names;
  for (size_t i = 0; i < root["cases"].size(); ++i) {
    const std::string place = str(path, ": cases[", i, "]");
    suite.cases.push_back(parse_case(root["cases"][i], place));
    require(names.insert(suite.cases.back().name).second, place, ".name: \"",
            suite.cases.back().name, "\" appears twice");
  }
  return suite;
}

const json* Parameters::find(const std::string& key) {
  read_.push_back(key);
  const auto value = json_.find(key);
  return value == json_.end() ? nullptr : &*value;
}

int64_t Parameters::integer(const std::string& key, int64_t fallback, int64_t low, int64_t high) {
  const json* value = find(key);
  if (!value) return fallback;
  require(is_integer_in(*value, low, high), where_, ".", key, ": must be an integer in ", low,
          " … ", high, ", is ", shown(*value));
  return *value;
}

double Parameters::number(const std::string& key, double fallback, double low, double high) {
  const json* value = find(key);
  if (!value) return fallback;
  const double number = value->is_number() ? value->get<double>() : 0;
  require(value->is_number() && low <= number && number <= high, where_, ".", key, ": must be a number in ", low,
          " … ", high, ", is ", shown(*value));
  return number;
}

std::string Parameters::text(const std::string& key, const std::string& fallback) {
  const json* value = find(key);
  if (!value) return fallback;
  require(value->is_string(), where_, ".", key, ": must be a string, is ", shown(*value));
  return *value;
}

std::vector<std::string> Parameters::texts(const std::string& key,
                                           const std::vector<std::string>& fallback) {
  const json* value = find(key);
  if (!value) return fallback;
  require(value->is_array() && !value->empty() && std::all_of(value->begin(), value->end(),
                                           [](const json& x) { return x.is_string(); }),
          where_, ".", key, ": must be a non-empty array of strings, is ", shown(*value));
  return value->get<std::vector<std::string>>();
}

std::vector<int64_t> Parameters::integers(const std::string& key,
                                          const std::vector<int64_t>& fallback, int64_t low,
                                          int64_t high) {
  const json* value = find(key);
  if (!value) return fallback;
  require(value->is_array() && !value->empty() &&
              std::all_of(value->begin(), value->end(),
                          [&](const json& x) { return is_integer_in(x, low, high); }),
          where_, ".", key, ": must be a non-empty array of integers in ", low, " … ", high,
          ", is ", shown(*value));
  return value->get<std::vector<int64_t>>();
}

std::vector<double> Parameters::numbers(const std::string& key,
                                        const std::vector<double>& fallback) {
  const json* value = find(key);
  if (!value) return fallback;
  require(value->is_array() && !value->empty() && std::all_of(value->begin(), value->end(),
                                           [](const json& x) { return x.is_number(); }),
          where_, ".", key, ": must be a non-empty array of numbers, is ", shown(*value));
  return value->get<std::vector<double>>();
}

void Parameters::refuse_others() const {
  for (const auto& [key, value] : json_.items())
    require(std::find(read_.begin(), read_.end(), key) != read_.end(), where_,
            ": unknown parameter \"", key, "\"");
}

}  // namespace hypic
