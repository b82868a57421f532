// Causal depthwise convolution over chains, with the windows that jumps and chunks carry.
#pragma once

#include "core/backend.h"

namespace hypic::reference {

template <class T>
void causal_conv(const CausalConvArgs& args, const ChainTable& table);

}  // namespace hypic::reference
