#include "core/json.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>
#include <vector>

#include "core/check.h"

namespace hypic {
namespace {

using nlohmann::json;

// A first pass that builds nothing.
class Guard : public nlohmann::json_sax<json> {
 public:
  explicit Guard(const JsonLimits& limits) : limits_(limits) {}
  bool start_object(size_t) override { return enter(); }
  bool start_array(size_t) override { return enter(); }
  bool end_object() override { return leave(); }
  bool end_array() override { return leave(); }
  bool key(std::string& key) override {
    std::set<std::string>& keys = keys_.back();
    if (!keys.insert(key).second) return refuse("key " + shown(key) + " is given twice");
    return keys.size() <= limits_.keys || refuse(str("an object has over ", limits_.keys, " keys"));
  }
  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(int64_t) override { return true; }
  bool number_unsigned(uint64_t) override { return true; }
  bool number_float(double, const std::string&) override { return true; }
  bool string(std::string&) override { return true; }
  bool binary(json::binary_t&) override { return true; }
  bool parse_error(size_t at, const std::string&, const json::exception& error) override {
    position = at;
    return refuse(error.id == 406 ? "a number is out of range" : "not valid JSON");
  }

  std::string reason;
  size_t position = 0;

 private:
  bool refuse(std::string why) {
    reason = std::move(why);
    return false;
  }
  bool enter() {
    keys_.emplace_back();
    return keys_.size() <= limits_.depth || refuse(str("nested deeper than ", limits_.depth));
  }
  bool leave() {
    keys_.pop_back();
    return true;
  }

  const JsonLimits& limits_;
  std::vector<std::set<std::string>> keys_;  // of each open object
};

}  // namespace

void check_json(std::string_view text, const std::string& where, const JsonLimits& limits) {
  Guard guard(limits);
  if (json::sax_parse(text, &guard)) return;
  if (guard.position > text.size()) guard.reason += ": it ends too early";
  const auto read = text.substr(0, guard.position);
  const auto line = 1 + std::count(read.begin(), read.end(), '\n');
  fail(where, guard.position && limits.name_line ? str(":", line) : "", ": ", guard.reason);
}

json parse_json(std::string_view text, const std::string& where, const JsonLimits& limits) {
  check_json(text, where, limits);
  return json::parse(text);
}

bool is_integer_in(const json& value, int64_t low, int64_t high) {
  if (!value.is_number_integer()) return false;
  if (value.is_number_unsigned() && value.get<uint64_t>() >> 63) return false;
  return low <= value.get<int64_t>() && value.get<int64_t>() <= high;
}

std::string shown(const json& value) {
  constexpr size_t kLimit = 80;
  if (value.is_structured()) return value.is_object() ? "an object" : "an array";
  const std::string text = value.dump(-1, ' ', true, json::error_handler_t::replace);
  return text.size() <= kLimit ? text : text.substr(0, kLimit) + "…";
}

}  // namespace hypic
