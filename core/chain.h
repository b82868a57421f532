// The chain table: what one forward computes, as flat arrays that a device can read.
//
// A request, or a segment prefilled alone, is a chain. A chain is a list of items in prompt order: a step
// runs rows of this forward from the current state, a jump applies a residue's operator to it. One table
// serves every layer of a forward; it is built by a planner and never changed while the forward runs.
//
//   prefill alone   step [0,h)   step [h,n−t) → operator   step [n−t,n)
//   reuse           step head seam   jump   step tail seam   … next segment …   step question
//   full, decode    one step
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace hypic {

// How a jump changes the state: S ← T·S + U · S + U · U · 0.
enum class Compose : uint8_t { transfer, add, last, zero };

inline constexpr int32_t kNone = -1;

struct ChainItem {
  enum class Kind : uint8_t { step, jump };
  Kind kind = Kind::step;
  Compose compose = Compose::transfer;  // jump
  bool keep = true;        // step; false: gives outputs and K, V, but state and window stay as before it
  int32_t begin = 0;       // step: rows [begin, end) of this forward
  int32_t end = 0;
  int32_t op = kNone;      // operator slot: step: receives the operator of the span; jump: is applied
  int32_t span = 0;        // step with op: tokens of the span that earlier forwards put into the slot
                           // (0: the span begins here) · jump: tokens jumped over
  int32_t shift = 0;       // jump: positions by which the segment moved since it was built (RoPE on keys); ≥ 0, for
                           // residues are built at position 0
  int32_t save = kNone;    // state slot that receives a copy of state and window after this item
};

// K, V of a residue's tokens [first, last), stored in pages at the residue's local positions.
// Rows of the chain at positions ≥ start + last see all of it; earlier rows see none.
struct ResidueRef {
  int32_t page_begin = 0;  // into ChainTable::pages; local token i is in page i / page_size of this list
  int32_t first = 0;
  int32_t last = 0;
  int32_t start = 0;       // position of local token 0 in the request
  int32_t shift = 0;       // Q is rotated back by this: start where K is to be relocated, 0 where not, or where the
                           // segment was first used: beyond the row's position too, so that distances may be below 0
};

struct Chain {
  int32_t level = 0;         // chains of a level may run at once; jumps read operators of lower levels
  int32_t item_begin = 0;    // into ChainTable::items
  int32_t item_end = 0;
  int32_t row_begin = 0;     // its rows in this forward, contiguous, in prompt order
  int32_t row_end = 0;
  int32_t state = kNone;     // state slot: read unless fresh, written at the end
  bool fresh = true;         // starts from zero state and empty convolution window
  int32_t page_begin = 0;    // own page list: K, V of the chain's own tokens
  int32_t kv_begin = 0;      // own tokens already in it; row r is own token kv_begin + (r − row_begin)
  int32_t residue_begin = 0; // into ChainTable::residues, ordered by start
  int32_t residue_end = 0;
};

struct ChainTable {
  int32_t page_size = 16;           // tokens a page
  std::vector<Chain> chains;        // ordered by level
  std::vector<ChainItem> items;
  std::vector<ResidueRef> residues;
  std::vector<int32_t> pages;       // page numbers, lists end to end
  std::vector<int32_t> tokens;      // [R] token id of each row
  std::vector<int32_t> positions;   // [R] absolute position of each row in its chain's prompt
  std::vector<int32_t> chain_of;    // [R]
  std::vector<int32_t> logit_rows;  // rows whose logits are wanted, ascending
  // [chains] What a chain computes, whatever run and forward it is in: a segment alone by a hash of its tokens, a
  // request by its number in the batch. On the host, for who watches a forward; may be empty.
  std::vector<uint64_t> labels;

  int32_t row_count() const { return static_cast<int32_t>(tokens.size()); }

  // Throws InternalError where the table contradicts itself: ranges, orders, a jump over an operator that
  // a chain of the same or a higher level makes, rows that no item or two items cover.
  void check(int64_t state_slots, int64_t operator_slots, int64_t page_count) const;

  std::string summary() const;  // "3 chains, 2 levels, 120 rows, 4 jumps"
};

}  // namespace hypic
