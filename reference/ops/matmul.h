// out = x · wᵀ with the same bits for a row in any batch. (Eigen's product depends on the row's place.)
#pragma once

#include "core/backend.h"

namespace hypic::reference {

template <class T>
void matmul(const MatmulArgs& args);

template <class T>
void head_matmul(const HeadMatmulArgs& args);

}  // namespace hypic::reference
