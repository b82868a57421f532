#include "serving/residue_stream.h"

#include "core/check.h"

namespace hypic {

const Model& of_one_rank(const Model& model) {
  require(model.spec().ranks == 1, "residues travel whole between workers, and of this model each of ",
          model.spec().ranks, " tensor-parallel ranks has a part: a worker takes one rank");
  return model;
}

std::vector<LayerSections> residue_layers(const ResidueLayout& layout, int layer_count, int64_t tokens) {
  std::vector<LayerSections> layers(layer_count);
  for (const Part part : {Part::kv, Part::op})
    for (Section& section : layout.sections(part, tokens)) layers.at(section.layer).push_back(std::move(section));
  return layers;
}

}  // namespace hypic
