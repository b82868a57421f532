#include "serving/residue_stream.h"

#include <utility>

namespace hypic {

StreamLayout::StreamLayout(const Model& model, int64_t tokens)
    : ranks_(model.spec().ranks), sections_(model.spec().layer_count()) {
  const Backend& backend = model.backend();
  const ResidueLayout layout(model.spec(), backend.compute_dtype(), backend.state_dtype(), ResidueFormat::full);
  for (const Part part : {Part::kv, Part::op})
    for (Section& section : layout.sections(part, tokens)) sections_.at(section.layer).push_back(std::move(section));
  for (const LayerSections& layer : sections_) begins_.push_back(begins_.back() + ranks_ * bytes_of(layer));
}

}  // namespace hypic
