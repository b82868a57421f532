#include "models/text_segments.h"

#include <algorithm>

#include "core/check.h"

namespace hypic {

std::vector<std::string> split_segments(std::string_view text, std::string_view separator) {
  require(!separator.empty(), "the segment separator is empty; give at least one character");
  std::vector<std::string> parts;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find(separator, begin), text.size());
    if (end > begin) parts.emplace_back(text.substr(begin, end - begin));
    begin = end + separator.size();
  }
  return parts;
}

}  // namespace hypic
