// Regular expressions that users write.
#pragma once

#include <regex>
#include <string>

namespace hypic {

// Error: `text` is none; `what` is what the user calls it, such as "--filter".
std::regex pattern_of(const std::string& what, const std::string& text);

}  // namespace hypic
