#include "serving/segment_cache.h"

#include <set>

namespace hypic {

SegmentCache::SegmentCache(std::string identity, Slots& pages, Slots& operators, Slots& states)
    : identity_(std::move(identity)), pages_(pages), operators_(operators), states_(states) {}

SegmentCache::Key SegmentCache::key(const Tokens& tokens) const {
  return Sha256()
      .add(identity_)
      .add(static_cast<int64_t>(tokens.size()))
      .add(tokens.data(), tokens.size() * sizeof(int32_t))
      .digest();
}

const SegmentCache::Kv* SegmentCache::find_kv(const Tokens& tokens) const {
  const auto found = kv_.find(key(tokens));
  return found != kv_.end() && found->second.tokens == tokens ? &found->second : nullptr;
}

int32_t SegmentCache::find_operator(const Tokens& tokens, int32_t first, int32_t tail) const {
  const auto found = operators_by_key_.find({key(tokens), {first, tail}});
  return found != operators_by_key_.end() && found->second.first == tokens ? found->second.second
                                                                           : kNone;
}

void SegmentCache::insert_kv(const Tokens& tokens, std::vector<int32_t> pages, int32_t built_at) {
  if (find_kv(tokens)) return pages_.give_back(pages);
  kv_[key(tokens)] = {tokens, std::move(pages), built_at};
}

void SegmentCache::insert_operator(const Tokens& tokens, int32_t first, int32_t tail, int32_t op) {
  if (find_operator(tokens, first, tail) != kNone) return operators_.give_back(op);
  operators_by_key_[{key(tokens), {first, tail}}] = {tokens, op};
}

const SegmentCache::Prefix* SegmentCache::find_prefix(const Tokens& tokens) const {
  const auto found = prefixes_.find(key(tokens));
  return found != prefixes_.end() && found->second.tokens == tokens ? &found->second : nullptr;
}

void SegmentCache::insert_prefix(const Tokens& tokens, std::vector<int32_t> pages, int32_t state) {
  if (find_prefix(tokens)) {
    pages_.give_back(pages);
    return states_.give_back(state);
  }
  prefixes_[key(tokens)] = {tokens, std::move(pages), state};
}

SegmentCache::Held SegmentCache::held() const {
  std::set<int32_t> pages;
  for (const auto& [key, kv] : kv_) pages.insert(kv.pages.begin(), kv.pages.end());
  for (const auto& [key, prefix] : prefixes_)
    pages.insert(prefix.pages.begin(), prefix.pages.end());
  return {static_cast<int64_t>(pages.size()), static_cast<int64_t>(operators_by_key_.size()),
          static_cast<int64_t>(prefixes_.size())};
}

void SegmentCache::flush() {
  for (const auto& [key, kv] : kv_) pages_.give_back(kv.pages);
  for (const auto& [key, op] : operators_by_key_) operators_.give_back(op.second);
  for (const auto& [key, prefix] : prefixes_) {
    pages_.give_back(prefix.pages);
    states_.give_back(prefix.state);
  }
  kv_.clear();
  operators_by_key_.clear();
  prefixes_.clear();
}

}  // namespace hypic
