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

// A residue on its way into slots of the engine. Destroyed once nothing is to be written there any more.
class Arrival {
 public:
  virtual ~Arrival() = default;
  // Waits until the layer is here and enqueues its copy into the slots; on the engine's thread, for each layer in their
  // order, all over again where the forward was given up. False: it does not come, then the engine computes the
  // residue.
  virtual bool place(int layer) = 0;
  virtual bool fails() = 0;  // whether place has returned or would return false
};

// Where an engine asks for residues that are not in its cache.
class ResidueSource {
 public:
  virtual ~ResidueSource() = default;
  // The residue of a segment with the operator over [first, n − tail), to go to these slots. Null: it does not come.
  virtual std::unique_ptr<Arrival> accept(const Tokens& tokens, int32_t first, int32_t tail, const Placement& to) = 0;
};

// Sees the residues that Engine::warm is asked for. May only enqueue: the slots may be others' afterwards.
class ResidueSink {
 public:
  virtual ~ResidueSink() = default;
  // Segment `index` of those asked for lies there, in full where it was cached.
  virtual void begin(size_t index, const Placement& from, bool cached) = 0;
  // This layer of all that were not cached is enqueued.
  virtual void after(int layer) = 0;
};

// The model itself. Error: it is one of several tensor-parallel ranks, each of which would have a part of every
// residue.
const Model& of_one_rank(const Model& model);

// The tensors of one layer of a residue, K, V before the operator's, each as in ResidueLayout::sections.
using LayerSections = std::vector<Section>;
std::vector<LayerSections> residue_layers(const ResidueLayout& layout, int layer_count, int64_t tokens);

}  // namespace hypic
