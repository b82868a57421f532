// Hands out the numbers 0 … n−1 of a pool, each to one owner or, counted, to several.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace hypic {

class Slots {
 public:
  Slots(std::string what, int64_t count);

  int32_t take();  // OutOfMemory when none is free: says how many there are and what to raise
  std::vector<int32_t> take(int64_t count);
  void share(int32_t slot);      // one more owner
  void give_back(int32_t slot);  // one owner fewer; free at none
  void give_back(const std::vector<int32_t>& slots);

  int64_t available() const { return static_cast<int64_t>(free_.size()); }
  int64_t in_use() const { return static_cast<int64_t>(owners_.size()) - available(); }
  int32_t owners(int32_t slot) const { return owners_.at(slot); }  // 0: free
  // InternalError where a slot is free twice, free and owned, or lost.
  void check() const;

 private:
  std::string what_;
  std::vector<int32_t> owners_;  // by slot
  std::vector<int32_t> free_;
};

}  // namespace hypic
