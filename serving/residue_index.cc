#include "serving/residue_index.h"

namespace hypic {

SegmentKey segment_key(const Tokens& tokens) {
  return Sha256().add(tokens.data(), tokens.size() * sizeof(int32_t)).digest();
}

void ResidueIndex::note(Part part, const Tokens& tokens, int32_t first, int32_t tail, bool here) {
  if (part == Part::op && (first != mode_.operator_first() || tail != mode_.tail)) return;
  const SegmentKey key = segment_key(tokens);
  const std::scoped_lock lock(mutex_);
  Parts& parts = here_[key];
  const bool before = parts.whole();
  (part == Part::kv ? parts.kv : parts.op) = here;
  const bool now = parts.whole();
  if (!parts.kv && !parts.op) here_.erase(key);
  if (now == before) return;
  changes_.push_back({key, now});
  if (changes_.size() > log_) changes_.pop_front();
  ++next_;
  changed_.notify_all();
}

ResidueIndex::Update ResidueIndex::since(uint64_t number, std::chrono::milliseconds wait) {
  std::unique_lock lock(mutex_);
  if (number != 0) changed_.wait_for(lock, wait, [&] { return next_ != number; });
  Update update{.next = next_};
  if (number == 0 || number > next_ || next_ - number > changes_.size()) {
    update.snapshot = true;
    for (const auto& [key, parts] : here_)
      if (parts.whole()) update.changes.push_back({key, true});
  } else {
    update.changes.assign(changes_.end() - static_cast<int64_t>(next_ - number), changes_.end());
  }
  return update;
}

}  // namespace hypic
