// JSON from outside: bounded, and no key may be given twice, for the last one would win silently.
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace hypic {

struct JsonLimits {
  size_t depth = 64;
  size_t keys = static_cast<size_t>(-1);  // of one object
  bool name_line = true;                  // in errors; off where `where` is a line already
};

// Throws Error: `where`, the line where known, and what is wrong. check_json builds nothing, for
// callers that go on to build a value of another kind.
nlohmann::json parse_json(std::string_view text, const std::string& where,
                          const JsonLimits& limits = {});
void check_json(std::string_view text, const std::string& where, const JsonLimits& limits = {});

// Whether it is an integer, from low to high. (Comparing JSON numbers takes 2^64 - 1 for -1.)
bool is_integer_in(const nlohmann::json& value, int64_t low, int64_t high);

// A value for an error message: its text, cut short.
std::string shown(const nlohmann::json& value);

}  // namespace hypic
