// A model on a backend: its spec and its weights.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "core/backend.h"
#include "models/spec.h"

namespace hypic {

// The spec alone, with the errors of Model::open that need no weights.
ModelSpec spec_of(const std::string& name_or_folder);

class Model {
 public:
  // `random:NAME[:SEED]` makes weights; anything else is a Hugging Face folder with config.json and
  // model.safetensors (F32 or BF16). Nothing is half-loaded.
  // Error: unknown name or type; a tensor missing, extra or of another shape; damaged file; out of
  // memory.
  static Model open(Backend& backend, const std::string& name_or_folder);

  // Random weights for any spec.
  static Model random(Backend& backend, ModelSpec spec, uint64_t seed);

  Backend& backend() const { return *backend_; }
  const ModelSpec& spec() const { return spec_; }
  // What cache keys carry, so that residues of two models never meet.
  const std::string& identity() const { return identity_; }
  // By its name in tensor_specs(); an absent name is an internal error.
  const Tensor& weight(const std::string& name) const;
  const Tensor& lm_head() const {
    return weight(spec_.tied ? "embed_tokens.weight" : "lm_head.weight");
  }

 private:
  Model(Backend& backend, ModelSpec spec, std::string identity);
  void put(const TensorSpec& tensor, const float* values);
  void load_folder(const std::string& folder);

  Backend* backend_;
  ModelSpec spec_;
  std::string identity_;
  std::map<std::string, Buffer> weights_;
};

// Writes a model's folder, config.json and model.safetensors in F32 or BF16, as a Hugging Face
// class would. `backend` must be a CPU backend.
void write_model(const Model& model, const std::string& folder, DType dtype);

}  // namespace hypic
