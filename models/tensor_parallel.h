// Cutting tensors into what the ranks of a tensor-parallel group have; part_of in spec.h says what that is.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "models/spec.h"

namespace hypic {

// Sets the shape and the cut of a tensor of `part.whole` to what this part has of it.
void cut(TensorSpec& tensor, const ModelSpec& part);

// A cut tensor in pieces, one after another in the part: `rows` times `columns` elements that lie together in the whole
// tensor, from `first` on, each row `stride` behind the one before.
struct CutPiece {
  int64_t first, rows, columns, stride;
};
// `whole`: the tensor's shape before it was cut.
void for_each_piece(const std::vector<int64_t>& whole, const Cut& cut, const std::function<void(const CutPiece&)>& use);

}  // namespace hypic
