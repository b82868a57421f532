// Random numbers from a counter.
#pragma once

#include "core/backend.h"

namespace hypic::reference {

void random_normal(const RandomNormalArgs& args);

}  // namespace hypic::reference
