// Any bytes through the project's own tokenizer, as text and as ids.
#include <cstring>

#include "core/fuzz.h"
#include "models/text_segments.h"
#include "models/tokenizer.h"

namespace hypic {
namespace {

void check(const Tokenizer& tokenizer, std::string_view text) {
  const std::string decoded = tokenizer.decode(tokenizer.encode(text));
  HYPIC_CHECK(tokenizer.decode(tokenizer.encode(decoded)) == decoded);

  std::string joined;
  for (const std::string& segment : split_segments(text)) {
    HYPIC_CHECK(!segment.empty() && !tokenizer.encode(segment).empty());
    joined += (joined.empty() ? "" : std::string(kSegmentSeparator)) + segment;
  }
  HYPIC_CHECK(split_segments(joined) == split_segments(text));

  std::vector<int32_t> ids(text.size() / sizeof(int32_t));
  if (!ids.empty()) std::memcpy(ids.data(), text.data(), ids.size() * sizeof(int32_t));
  for (int32_t& id : ids)
    if (id & 1) id = (id & 0xffffff) % (tokenizer.vocab_size() + 1);
  const std::string of_ids = tokenizer.decode(ids, false);
  HYPIC_CHECK(tokenizer.decode(tokenizer.encode(of_ids)).size() <= 3 * of_ids.size());
}

}  // namespace
}  // namespace hypic

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const hypic::Tokenizer tokenizer = hypic::Tokenizer::load("datasets/tokenizer");
  hypic::check(tokenizer, hypic::as_text(data, size));
  return 0;
}
