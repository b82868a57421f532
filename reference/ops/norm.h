// Normalisations over the last axis: RMS norm (arXiv 1910.07467) and L2 norm.
#pragma once

#include "core/backend.h"

namespace hypic::reference {

template <class T>
void rms_norm(const RmsNormArgs& args);

template <class T>
void l2_norm(const L2NormArgs& args);

}  // namespace hypic::reference
