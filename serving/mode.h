// How residues are joined: the modes of HYPIC (arXiv 2607.01299, sections 4 and 6), its baselines
// and controls, each run by the same engine.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/chain.h"

namespace hypic {

// Where reused K stand: at their new positions, where they were built (0 … n−1), or where their
// segment was first used.
enum class Rotate : uint8_t { on, off, built_at };

// What is reused: nothing, the longest cached prefix (exact), or segments anywhere.
enum class Reuse : uint8_t { none, prefix, segments };

struct Mode {
  std::string name;
  Reuse reuse = Reuse::segments;
  Compose compose = Compose::transfer;
  Rotate rotate = Rotate::on;
  int head = 0;  // tokens of the head seam, recomputed in full context
  int tail = 0;

  // The span [first, n − tail) that a jump's operator covers: what `add`, `last`, `zero` keep is
  // the state of the whole segment, so there the head seam gives outputs only.
  int operator_first() const { return compose == Compose::transfer ? head : 0; }
};

// full, prefix, addition, addition_rope_seam, last_block, zero_state, transition, transition_rope,
// transition_rope_seam (HYPIC, the default), two_sided_seam.
const std::vector<Mode>& modes();

// A name of modes(), optionally with options: NAME[:head=H][:tail=T][:rotate=on|off|built_at].
// Error: unknown name (lists the known), option or value.
Mode mode_named(std::string_view text);

}  // namespace hypic
