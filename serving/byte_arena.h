// One piece of memory, and who has which part of it.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <utility>

namespace hypic {

// Hands out ranges of memory that others own and that it never touches. Ranges may be given back by any thread; none
// may outlive the arena.
class ByteArena {
 public:
  ByteArena(uint8_t* memory, int64_t bytes);
  ByteArena(const ByteArena&) = delete;
  ByteArena& operator=(const ByteArena&) = delete;

  class Range {
   public:
    Range() = default;
    Range(Range&& other) noexcept { *this = std::move(other); }
    Range& operator=(Range&& other) noexcept {
      std::swap(arena_, other.arena_);
      std::swap(offset_, other.offset_);
      std::swap(bytes_, other.bytes_);
      return *this;
    }
    ~Range() {
      if (arena_) arena_->give_back(offset_, bytes_);
    }
    explicit operator bool() const { return arena_ != nullptr; }
    uint8_t* data() const { return arena_->memory_ + offset_; }
    int64_t size() const { return bytes_; }

   private:
    friend class ByteArena;
    Range(ByteArena* arena, int64_t offset, int64_t bytes) : arena_(arena), offset_(offset), bytes_(bytes) {}
    ByteArena* arena_ = nullptr;
    int64_t offset_ = 0, bytes_ = 0;
  };

  // The first free stretch that holds it, from the lower end or from the upper one: what has one size at one end and
  // what has many at the other leave each other no gaps. At a multiple of kAlignment. Empty where there is none.
  enum class End { lower, upper };
  Range take(int64_t bytes, End end);

  int64_t in_use() const;  // bytes, as rounded up
  // InternalError where free stretches overlap, touch or do not add up.
  void check() const;

  static constexpr int64_t kAlignment = 64;
  static constexpr int64_t rounded_up(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

 private:
  void give_back(int64_t offset, int64_t bytes);

  uint8_t* const memory_;
  const int64_t capacity_;
  mutable std::mutex mutex_;
  std::map<int64_t, int64_t> free_;  // bytes by offset
  int64_t in_use_ = 0;
};

}  // namespace hypic
