// Residues as they would travel, for tests.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "models/model.h"
#include "serving/residue_stream.h"

namespace hypic {

// The layers of residues as Engine::warm leaves them, of each the parts of all ranks.
class Kept final : public ResidueSink {
 public:
  Kept(const Model& model, const std::vector<Tokens>& segments) : ranks(model.spec().ranks) {
    for (const Tokens& tokens : segments) {
      const StreamLayout& layout = layouts_.emplace_back(model, static_cast<int64_t>(tokens.size()));
      auto& layers = bytes.emplace_back();
      for (size_t layer = 0; layer < layout.layers(); ++layer) layers.emplace_back(layout.size(layer));
    }
    for (Rank& rank : ranks) rank = {std::vector<Placement>(segments.size()), std::vector<bool>(segments.size())};
  }
  void begin(const RankPools& at, size_t index, const Placement& from, bool is_cached) override {
    ranks[at.rank].from[index] = from;
    ranks[at.rank].cached[index] = is_cached;
    for (size_t layer = 0; layer < bytes[index].size() && is_cached; ++layer) take(at, index, layer);
  }
  void after(const RankPools& at, int layer) override {
    for (size_t i = 0; i < bytes.size(); ++i)
      if (!ranks[at.rank].cached[i]) take(at, i, layer);
  }
  std::vector<std::vector<std::vector<uint8_t>>> bytes;  // by segment, layer
  struct Rank {
    std::vector<Placement> from;
    std::vector<bool> cached;
  };
  std::vector<Rank> ranks;

 private:
  void take(const RankPools& at, size_t index, size_t layer) {
    const StreamLayout& layout = layouts_[index];
    const auto part = pack(at.backend, at.pools, layout.sections(layer), ranks[at.rank].from[index]);
    std::copy(part.begin(), part.end(), bytes[index][layer].begin() + at.rank * layout.part_size(layer));
  }
  std::vector<StreamLayout> layouts_;
};

}  // namespace hypic
