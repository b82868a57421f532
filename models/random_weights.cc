#include "models/random_weights.h"

#include <cmath>
#include <numbers>

#include "core/dtype.h"

namespace hypic {
namespace {

// SplitMix64 (Steele, Lea, Flood 2014).
uint64_t mix(uint64_t z) {
  z += 0x9e3779b97f4a7c15;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

uint64_t hash_name(const std::string& name, uint64_t seed) {
  uint64_t h = mix(seed);
  for (const unsigned char c : name) h = mix(h ^ c);
  return h;
}

// In (0, 1), from a counter.
double uniform(uint64_t stream, uint64_t i) {
  return (static_cast<double>(mix(stream + i) >> 11) + 0.5) * 0x1p-53;
}

double normal(uint64_t stream, uint64_t i) {  // Box and Muller
  return std::sqrt(-2 * std::log(uniform(stream, 2 * i))) *
         std::cos(2 * std::numbers::pi * uniform(stream, 2 * i + 1));
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

void fill_random(const ModelSpec& spec, const TensorSpec& tensor, uint64_t seed, float* out) {
  const int64_t size = tensor.size();
  // Of a matrix for each expert or head [E, N, K], that of one.
  const double fan_in = static_cast<double>(tensor.shape.size() == 1 ? 1 : tensor.shape.back());
  const uint64_t stream = hash_name(tensor.name, seed);
  const auto normals = [&](double mean, double deviation) {
    for (int64_t i = 0; i < size; ++i)
      out[i] = static_cast<float>(
          BFloat16::from(static_cast<float>(mean + deviation * normal(stream, i))));
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
      for (int64_t h = 0; h < size; ++h)
        out[h] = static_cast<float>(std::log(decay_of(spec, layer, seed, h).A));
      return;
    case Init::dt_bias: {  // [H] or [H, D]
      const int64_t channels = size / tensor.shape[0];
      for (int64_t i = 0; i < size; ++i)
        out[i] = static_cast<float>(std::log(std::expm1(decay_of(spec, layer, seed, i / channels).step)));
      return;
    }
  }
}

}  // namespace hypic
