// JSON from outside: bounded in depth, and a key given twice is refused, for the last one would win silently.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace hypic {

// Error: `where`, the line, and what is wrong.
nlohmann::json parse_json(std::string_view text, const std::string& where);

// A value for an error message: its text, cut short.
std::string shown(const nlohmann::json& value);

}  // namespace hypic
