// How the cell of elementwise decay is laid over a GPU. Pure functions of the sizes; no plan changes a bit of a result.
#pragma once

namespace hypic::cuda {

inline constexpr int kEntryKeys = 16;           // d_k at most; less is filled up with zeros
inline constexpr int kEntryChannels = 16;       // of a block of the walk
inline constexpr int kEntryStepChannels = 128;  // of a block of single rows

// A block of the walk has kEntryChannels channels of a chain's head, a thread `keys` entries of one channel.
struct EntryPlan {
  int parts;  // blocks of a head
  int keys;   // 1 or 2

  int threads() const { return kEntryChannels * kEntryKeys / keys; }
};

EntryPlan plan_entries(int sms, int chains, int heads, int dv);

}  // namespace hypic::cuda
