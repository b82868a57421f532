#include "serving/residue_stream.h"

namespace hypic {

std::vector<LayerSections> residue_layers(const ResidueLayout& layout, int layer_count, int64_t tokens) {
  std::vector<LayerSections> layers(layer_count);
  for (const Part part : {Part::kv, Part::op})
    for (Section& section : layout.sections(part, tokens)) layers.at(section.layer).push_back(std::move(section));
  return layers;
}

}  // namespace hypic
