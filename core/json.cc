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

constexpr size_t kMaxDepth = 64;

// A first pass that builds nothing.
class Guard : public nlohmann::json_sax<json> {
 public:
  bool start_object(size_t) override { return enter(); }
  bool start_array(size_t) override { return enter(); }
  bool end_object() override { return leave(); }
  bool end_array() override { return leave(); }
  bool key(std::string& key) override {
    return keys_.back().insert(key).second || refuse("key \"" + key.substr(0, 80) + "\" is given twice");
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
    return keys_.size() <= kMaxDepth || refuse(str("nested deeper than ", kMaxDepth));
  }
  bool leave() {
    keys_.pop_back();
    return true;
  }
  std::vector<std::set<std::string>> keys_;  // of each open object
};

}  // namespace

json parse_json(std::string_view text, const std::string& where) {
  Guard guard;
  if (!json::sax_parse(text, &guard)) {
    const size_t at = std::min(guard.position, text.size());
    const auto line = 1 + std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(at), '\n');
    fail(where, guard.position ? str(":", line) : "", ": ", guard.reason);
  }
  return json::parse(text);
}

std::string shown(const json& value) {
  constexpr size_t kLimit = 80;
  if (value.is_structured()) return value.is_object() ? "an object" : "an array";
  const std::string text = value.dump(-1, ' ', true, json::error_handler_t::replace);
  return text.size() <= kLimit ? text : text.substr(0, kLimit) + "…";
}

}  // namespace hypic
