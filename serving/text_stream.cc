#include "serving/text_stream.h"

#include <algorithm>
#include <utility>

namespace hypic {
namespace {

constexpr std::string_view kReplacement = "\xef\xbf\xbd";  // U+FFFD
constexpr size_t kMostPending = 8;                         // more than a character has bytes: it is ill-formed

}  // namespace

std::string TextStream::add(int32_t token) {
  if (stopped_) return {};
  pending_.push_back(token);
  const std::string text = tokenizer_.decode(pending_, true);
  if (text.ends_with(kReplacement) && pending_.size() < kMostPending) return {};
  pending_.clear();
  held_ += text;
  return release(false);
}

std::string TextStream::finish() {
  if (stopped_) return {};
  held_ += tokenizer_.decode(std::exchange(pending_, {}), true);
  return release(true);
}

std::string TextStream::release(bool all) {
  size_t end = std::string::npos;
  for (const std::string& stop : stops_) end = std::min(end, held_.find(stop));
  if (end != std::string::npos) {
    stopped_ = true;
    return std::exchange(held_, {}).substr(0, end);
  }
  size_t keep = 0;
  for (const std::string& stop : stops_)
    for (size_t n = std::min(stop.size() - 1, held_.size()); !all && n > keep; --n)
      if (std::string_view(held_).ends_with(std::string_view(stop).substr(0, n))) keep = n;
  std::string out = held_.substr(0, held_.size() - keep);
  held_.erase(0, out.size());
  return out;
}

}  // namespace hypic
