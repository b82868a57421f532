// Operations without sums across elements: embedding, residual add, gates, gathers.
#pragma once

#include <cmath>

#include "core/backend.h"

namespace hypic::reference {

template <class T>
T activate(T x, Activation activation) {
  switch (activation) {
    case Activation::identity: return x;
    case Activation::silu: return x / (1 + std::exp(-x));
    case Activation::sigmoid: return 1 / (1 + std::exp(-x));
    case Activation::relu2: return x > 0 ? x * x : T{0};
  }
  return x;
}

template <class T>
void embedding(const EmbeddingArgs& args);
template <class T>
void add(const AddArgs& args);
template <class T>
void gate_mul(const GateMulArgs& args);
template <class T>
void decay_gate(const DecayGateArgs& args);
template <class T>
void sigmoid(const SigmoidArgs& args);
template <class T>
void gather_rows(const GatherRowsArgs& args);

}  // namespace hypic::reference
