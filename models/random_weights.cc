#include "models/random_weights.h"

#include <cmath>

#include "core/counter_bits.h"

namespace hypic {
namespace {

uint64_t hash_name(const std::string& name, uint64_t seed) {
  uint64_t h = mix(seed);
  for (const unsigned char c : name) h = mix(h ^ c);
  return h;
}

// A_log and dt_bias of a layer share their draws.
std::string layer_of(const std::string& name) { return name.substr(0, name.rfind('.')); }

double log_uniform(uint64_t stream, int64_t i, double low, double high) {
  return low * std::pow(high / low, uniform(stream, i));
}

// The tokens after which head keeps 1/e: one head in each of `heads` equal parts of 64 … 65,536 on
// a log scale, in an order that differs by layer.
double memory_length(const std::string& layer, uint64_t seed, int64_t head, int64_t heads) {
  const uint64_t stream = hash_name(layer + ".memory", seed);
  const double part =
      (static_cast<double>((head + mix(stream) % heads) % heads) + uniform(stream, head + 1)) /
      static_cast<double>(heads);
  return 64 * std::pow(1024.0, part);
}

// A head forgets by exp(−A·Δ) a token, A = exp(A_log), Δ = softplus(dt_bias) at a gate of zero.
struct DecayDraw {
  double A, step;
};

DecayDraw decay_of(const ModelSpec& spec, const std::string& layer, uint64_t seed, int64_t head) {
  const double rate = 1 / memory_length(layer, seed, head, spec.linear.value_heads);
  const uint64_t stream = hash_name(layer + ".A", seed);
  // In Mamba-2 Δ scales the input too, and has a lower limit: Δ is drawn, A follows.
  if (spec.linear.family == Family::mamba2) {
    const double step = log_uniform(stream, head, 0.01, 0.1);
    return {rate / step, step};
  }
  const double A = log_uniform(stream, head, 1, 16);
  return {A, rate / A};
}

// Logits have an rms of about 1, whatever the multipliers: a tied embedding is the head too.
double embedding_rms(const ModelSpec& spec) {
  return 1 / (std::sqrt(static_cast<double>(spec.hidden)) * (spec.tied ? spec.logit_scale : spec.embedding_scale));
}

// What a sublayer's output of this rms weighs as much as: the embedding in the residual stream, or, where each
// sublayer adds to its own normed input, that input.
double stream_rms(const ModelSpec& spec) {
  const Mix& mix = spec.linear_mix;
  const double stream = spec.layers.front().residual == Residual::normed
                            ? mix.residual
                            : spec.embedding_scale * embedding_rms(spec);
  return stream / mix.update;
}

}  // namespace

RandomTensor random_tensor(const ModelSpec& spec, const TensorSpec& tensor, uint64_t seed) {
  // Of a matrix for each expert or head [E, N, K], that of one.
  const double fan_in = static_cast<double>(tensor.shape.size() == 1 ? 1 : tensor.shape.back());
  const auto normals = [&](double mean, double deviation) {
    return RandomTensor{hash_name(tensor.name, seed), mean, deviation, {}};
  };
  const std::string layer = layer_of(tensor.name);
  switch (tensor.init) {
    case Init::matrix:
      return normals(0, 1 / std::sqrt(fan_in));
    case Init::head:
      return normals(0, 1 / (std::sqrt(fan_in) * spec.logit_scale));
    case Init::embedding:
      return normals(0, embedding_rms(spec));
    case Init::router:
      // Logits of rms 2: some experts of 256 take ten times the mean load, few are never chosen.
      return normals(0, 2 / std::sqrt(fan_in));
    case Init::output_matrix:
      // All sublayers together add about twice what the embedding brings.
      return normals(0, 2 * stream_rms(spec) / std::sqrt(2.0 * spec.layer_count() * fan_in));
    case Init::gate_matrix:
      return normals(0, 0.25 / std::sqrt(fan_in));
    case Init::norm:
    case Init::D:
      return normals(1, 0.1);
    case Init::norm_offset:
      return normals(0, 0.1);
    case Init::bias:
    case Init::router_bias:
      return normals(0, 0.02);
    case Init::A_log:
    case Init::dt_bias:
      break;
  }
  RandomTensor gates;
  const int64_t channels = tensor.size() / tensor.shape[0];  // [H] or [H, D]
  for (int64_t i = 0; i < tensor.size(); ++i) {
    const DecayDraw draw = decay_of(spec, layer, seed, i / channels);
    gates.values.push_back(static_cast<float>(tensor.init == Init::A_log ? std::log(draw.A)
                                                                         : std::log(std::expm1(draw.step))));
  }
  return gates;
}

}  // namespace hypic
