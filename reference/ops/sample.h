// The next token of each row of logits.
#pragma once

#include "core/backend.h"

namespace hypic::reference {

template <class T>
void sample(const SampleArgs& args);

}  // namespace hypic::reference
