// What has been computed and may be used again: residues of segments in two stores (K, V;
// operators), and states after whole prefixes. Keys are SHA-256 over the token ids and everything
// that the values depend on; a hit compares the token ids too.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "core/sha256.h"
#include "serving/planner.h"
#include "serving/slots.h"

namespace hypic {

class SegmentCache {
 public:
  // `identity`: model, dtype, layout, rank. Slots belong to the engine; the cache gives back what
  // it drops.
  SegmentCache(std::string identity, Slots& pages, Slots& operators, Slots& states);
  ~SegmentCache() { flush(); }

  using Key = Sha256::Digest;
  Key key(const Tokens& tokens) const;

  struct Kv {
    Tokens tokens;
    std::vector<int32_t> pages;
    int32_t built_at = 0;
  };
  // nullptr where absent. Pointers hold until the entry is dropped.
  const Kv* find_kv(const Tokens& tokens) const;
  // The operator slot over the span [first, n − tail); kNone where absent.
  int32_t find_operator(const Tokens& tokens, int32_t first, int32_t tail) const;

  // Takes the slots over; where the entry exists already, gives them back instead.
  void insert_kv(const Tokens& tokens, std::vector<int32_t> pages, int32_t built_at);
  void insert_operator(const Tokens& tokens, int32_t first, int32_t tail, int32_t op);

  struct Prefix {
    Tokens tokens;
    std::vector<int32_t> pages;  // shared with the request that made them
    int32_t state = kNone;
  };
  const Prefix* find_prefix(const Tokens& tokens) const;
  void insert_prefix(const Tokens& tokens, std::vector<int32_t> pages, int32_t state);

  void flush();
  size_t segment_count() const { return kv_.size(); }
  // Distinct pages, operator slots and state slots that entries own.
  struct Held {
    int64_t pages, operators, states;
  };
  Held held() const;

 private:
  std::string identity_;
  Slots& pages_;
  Slots& operators_;
  Slots& states_;
  std::map<Key, Kv> kv_;
  std::map<std::pair<Key, std::pair<int32_t, int32_t>>, std::pair<Tokens, int32_t>>
      operators_by_key_;
  std::map<Key, Prefix> prefixes_;
};

}  // namespace hypic
