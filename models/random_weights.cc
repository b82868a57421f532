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

// A_log and dt_bias of a layer share the draw of exp(A_log) ∈ [1, 16].
std::string layer_of(const std::string& name) { return name.substr(0, name.rfind('.')); }

double A_of(const std::string& layer, uint64_t seed, int64_t head) {
  return std::exp(std::log(16.0) * uniform(hash_name(layer + ".A", seed), head));
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

}  // namespace

void fill_random(const ModelSpec& spec, const TensorSpec& tensor, uint64_t seed, float* out) {
  int64_t size = 1;
  for (const int64_t n : tensor.shape) size *= n;
  const double fan_in = static_cast<double>(size) / static_cast<double>(tensor.shape[0]);
  const uint64_t stream = hash_name(tensor.name, seed);
  const auto normals = [&](double mean, double deviation) {
    for (int64_t i = 0; i < size; ++i)
      out[i] = static_cast<float>(
          BFloat16::from(static_cast<float>(mean + deviation * normal(stream, i))));
  };
  const std::string layer = layer_of(tensor.name);
  switch (tensor.init) {
    case Init::matrix:
    case Init::embedding:
      return normals(0, 1 / std::sqrt(fan_in));
    case Init::output_matrix:
      // All sublayers together add about as much as the embedding brings (rms 1/√hidden).
      return normals(0, 2 / std::sqrt(2.0 * spec.layer_count() * spec.hidden * fan_in));
    case Init::gate_matrix:
      return normals(0, 0.25 / std::sqrt(fan_in));
    case Init::norm:
      return normals(1, 0.1);
    case Init::norm_offset:
      return normals(0, 0.1);
    case Init::A_log:
      for (int64_t h = 0; h < size; ++h)
        out[h] = static_cast<float>(std::log(A_of(layer, seed, h)));
      return;
    case Init::dt_bias:
      // softplus(dt_bias) · exp(A_log) = 1 / memory
      for (int64_t h = 0; h < size; ++h)
        out[h] = static_cast<float>(
            std::log(std::expm1(1 / (memory_length(layer, seed, h, size) * A_of(layer, seed, h)))));
      return;
  }
}

}  // namespace hypic
