// Memory whose places stay: what is taken is given back and taken again, the slabs that it lies in remain.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <memory>

namespace hypic::cuda {

// Of recorded operations, which run again and again with the addresses that they were recorded with. Whoever takes
// memory uses it in stream order, and so may others after it has been given back. Not for several threads at once.
class Arena {
 public:
  // Memory of so many bytes, which `release` takes when the arena goes.
  using Obtain = std::function<void*(size_t bytes)>;
  using Release = std::function<void(void*)>;
  Arena(Obtain obtain, Release release);
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;
  ~Arena();

  // At a multiple of kAlignment; 0 bytes take some too.
  void* take(size_t bytes);
  // False, and nothing done, where it was not taken here.
  bool give_back(void* memory) noexcept;

  size_t bytes() const { return bytes_; }  // of all slabs

  static constexpr size_t kAlignment = 256;
  static constexpr size_t kMinSlab = 4 << 20;

 private:
  using Places = std::map<char*, size_t>;  // bytes by begin
  struct Slab {
    char* begin;
    Places free;  // no two adjoin
  };
  struct Taken {
    Slab* slab;
    size_t bytes;
  };
  const Obtain obtain_;
  const Release release_;
  std::map<char*, std::unique_ptr<Slab>> slabs_;
  std::map<char*, Taken> taken_;
  size_t bytes_ = 0;
};

// What this thread records at the moment takes its memory from here; null: nothing is recorded.
inline thread_local Arena* recording_arena = nullptr;

}  // namespace hypic::cuda
