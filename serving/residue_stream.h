// Residues that come to an engine or leave it layer by layer, while its forwards run.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "models/model.h"
#include "serving/planner.h"
#include "serving/residue_format.h"

namespace hypic {

// A tensor-parallel rank of an engine: what it keeps of residues. The only one of most engines.
struct RankPools {
  int rank;
  Backend& backend;
  const Pools& pools;
};

// A residue on its way into slots of the engine, for all of its ranks. Destroyed once nothing is to be written there
// any more. `comes` and `fails` are asked once for all ranks, on any one's thread, one at a time.
class Arrival {
 public:
  virtual ~Arrival() = default;
  // Waits until the layer is here. False: it does not come, then the engine computes the residue. Of the layers in
  // their order, all over again where the forward was given up.
  virtual bool comes(int layer) = 0;
  virtual bool fails() = 0;  // whether comes has returned or would return false
  // Enqueues the copy of the rank's part of a layer that has come; on that rank's thread.
  virtual void place(int layer, const RankPools& at, const Placement& to) = 0;
};

// Where an engine asks for residues that are not in its cache.
class ResidueSource {
 public:
  virtual ~ResidueSource() = default;
  // The residue of a segment with the operator over [first, n − tail). Null: it does not come. Asked as above.
  virtual std::shared_ptr<Arrival> accept(const Tokens& tokens, int32_t first, int32_t tail) = 0;
};

// Sees the residues that Engine::warm is asked for: each rank, on its own thread, says the same in the same order of
// its part of them. May only enqueue: the slots may be others' afterwards.
class ResidueSink {
 public:
  virtual ~ResidueSink() = default;
  // Segment `index` of those asked for lies there, in full where it was cached.
  virtual void begin(const RankPools& at, size_t index, const Placement& from, bool cached) = 0;
  // This layer of all that were not cached is enqueued.
  virtual void after(const RankPools& at, int layer) = 0;
};

// The tensors of one layer of a residue, K, V before the operator's, each as in ResidueLayout::sections.
using LayerSections = std::vector<Section>;

// Where the bytes of a residue lie on its way: layer behind layer, of each the parts of all ranks, which are of one
// size, in their order.
class StreamLayout {
 public:
  StreamLayout() = default;
  // `model`: the first rank's part of it.
  StreamLayout(const Model& model, int64_t tokens);

  size_t layers() const { return sections_.size(); }
  int64_t bytes() const { return begins_.back(); }
  int64_t begin(size_t layer) const { return begins_[layer]; }
  int64_t size(size_t layer) const { return begins_[layer + 1] - begins_[layer]; }
  const LayerSections& sections(size_t layer) const { return sections_[layer]; }  // of a part
  int64_t part_size(size_t layer) const { return size(layer) / ranks_; }
  int64_t part_begin(size_t layer, int rank) const { return begins_[layer] + rank * part_size(layer); }

 private:
  int ranks_ = 1;
  std::vector<LayerSections> sections_;
  std::vector<int64_t> begins_ = {0};  // by layer, and the end
};

}  // namespace hypic
