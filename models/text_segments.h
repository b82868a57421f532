// Splitting a prompt into segments by a marker in its text.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace hypic {

// The marker of the published code. It is ordinary text to a tokenizer, so split before tokenising.
inline constexpr std::string_view kSegmentSeparator = "<<PIC_SEP>>";

// The parts of `text` between separators, in order. As in the published code, nothing is stripped
// and empty parts are dropped: the position of a segment counts those before it that hold text.
// Each part is to be tokenised alone. Throws Error when `separator` is empty.
std::vector<std::string> split_segments(std::string_view text,
                                        std::string_view separator = kSegmentSeparator);

}  // namespace hypic
