// Mixture of experts: the router's choice and the chosen experts' sum.
#pragma once

#include "core/backend.h"

namespace hypic::reference {

template <class T>
void route(const RouteArgs& args);

template <class T>
void experts(const ExpertsArgs& args);

}  // namespace hypic::reference
