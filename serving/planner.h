// From segments and what is cached of them to chain tables. Pure: no memory, no device, no clock.
//
// Missed segments become isolated chains (position 0, zero state, no window) in the same forwards
// as the requests that need them, before them; a request's chain jumps over what they leave.
#pragma once

#include <cstdint>
#include <vector>

#include "core/chain.h"
#include "serving/mode.h"

namespace hypic {

using Tokens = std::vector<int32_t>;

// What a segment leaves when prefilled alone: K, V pages of its n tokens and, per linear layer, the
// operator over the span that a mode jumps over.
struct Residue {
  int32_t length = 0;
  std::vector<int32_t> pages;
  int32_t op = kNone;
  int32_t built_at = 0;  // position of its first use, for Rotate::built_at
};

// A residue that this plan computes.
struct Build {
  int32_t residue = 0;  // into PlanInput::residues
  Tokens tokens;
  int32_t state = kNone;  // a slot to run in
};

// Which states the builds of a plan run in, numbered from 0. A plan lays them out one after another, so
// two that no forward can hold together may share one: a long prompt takes no more than fit a forward.
class BuildStates {
 public:
  explicit BuildStates(int32_t max_rows) : max_rows_(max_rows) {}
  int32_t next(int64_t tokens);  // of the next build
  int32_t count() const { return static_cast<int32_t>(ends_.size()); }

 private:
  const int64_t max_rows_;
  int64_t rows_ = 0;           // of the builds so far
  std::vector<int64_t> ends_;  // by state: the row behind the last build in it
};

struct PlanSegment {
  Tokens tokens;
  int32_t residue = kNone;  // kNone: computed in full context
  int32_t save = kNone;     // state slot that receives the state after the segment
};

struct PlanRequest {
  std::vector<PlanSegment>
      segments;  // in prompt order; the last is the question and has no residue
  int32_t state = kNone;
  bool fresh = true;           // false: the slot holds the state after `prefix` tokens
  std::vector<int32_t> pages;  // own page list, long enough for every token it computes and decodes
  int32_t prefix = 0;  // own tokens already in the pages, and the position of the first segment
};

// Faults of the published code (spec of 98147c0), put back by tests to show that they would be
// seen.
struct Faults {
  bool seam_counted_twice = false;  // the operator of [0, n−t) is applied after the seam
  bool warm_without_state =
      false;  // a warm-up of one segment registers an entry but stores no state
  bool built_in_context =
      false;  // a miss is built after its predecessor: the first requester's context
  bool keys_not_rotated = false;     // reused K stay at positions 0 … n−1
  bool addition_first_miss = false;  // addition drops every miss but the first
  bool window_lost = false;          // a jump leaves no convolution history
  bool state_not_cleared = false;    // a chain starts from what its slot held before
  bool stored_twice = false;     // misses of requests with two or more tokens are stored after the
                                 // prefill and once more at the end
  bool hits_not_pinned = false;  // what a request uses may be evicted meanwhile
};

struct PlanInput {
  Mode mode;
  int32_t page_size = 16;
  int32_t max_rows = 8192;  // rows of one forward
  std::vector<Residue> residues;
  std::vector<Build> builds;
  std::vector<PlanRequest> requests;
  Faults faults;
};

// What a plan computes and what it reuses, in tokens unless said otherwise. Proof of reuse.
struct Counters {
  int64_t isolated = 0;  // rows of segments prefilled alone
  int64_t seam = 0;      // rows of reused segments computed again in full context
  int64_t context = 0;   // other rows in full context: question, segments too short to reuse
  int64_t prefix = 0;    // tokens found in a cached prefix
  int64_t jumped = 0;    // tokens whose operator was applied instead
  int64_t jumps = 0;     // operators applied, per layer
  int64_t rotated = 0;   // tokens whose K are read at another position than built

  int64_t computed() const { return isolated + seam + context; }
  Counters& operator+=(const Counters& other);
};

// K, V of a residue as a request's chain refers to it; `pages` replaces ref.page_begin.
struct PagedResidue {
  ResidueRef ref;
  std::vector<int32_t> pages;
};

struct Plan {
  std::vector<ChainTable> tables;                   // one forward each, in order
  std::vector<std::vector<int32_t>> logit_owners;   // by table: the request of each logit row
  std::vector<std::vector<PagedResidue>> residues;  // by request: what its decode rows see
  Counters counters;
};

Plan plan_prefill(const PlanInput& input);

// A request between two decode steps.
struct DecodeRow {
  int32_t token = 0;
  int32_t position = 0;  // of the token
  int32_t state = kNone;
  int32_t own = 0;  // own tokens in the pages
  const std::vector<int32_t>* pages = nullptr;
  const std::vector<PagedResidue>* residues = nullptr;
};

ChainTable plan_decode(const std::vector<DecodeRow>& rows, int32_t page_size);

// Makes one forward of two whose chains have nothing to do with each other: `more` behind `table`, whose chains are of
// level 0, with the rows, items, pages and residues of each in their order.
void join(ChainTable& table, const ChainTable& more);

}  // namespace hypic
