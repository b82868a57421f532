#include "harness/pattern.h"

#include "core/check.h"

namespace hypic {

std::regex pattern_of(const std::string& what, const std::string& text) {
  try {
    return std::regex(text);
  } catch (const std::regex_error&) {
    fail(what, ": \"", text, "\" is no regular expression");
  }
}

}  // namespace hypic
