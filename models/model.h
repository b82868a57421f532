// A model on a backend: its spec and its weights.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/backend.h"
#include "models/spec.h"

namespace hypic {

// The spec alone, with the errors of Model::open that need no weights.
ModelSpec spec_of(const std::string& name_or_folder);

// What a StackSpec became: [N, K], each part a range of its rows.
struct Stack {
  struct Part {
    int64_t begin, end;  // begin is a multiple of 8: columns of bf16 outputs stay aligned to 16 bytes
  };
  Tensor weights;  // N is a multiple of 8; rows of no part are zero
  std::vector<Part> parts;

  // Of out [R, N] = x · weightsᵀ, what the i-th part makes.
  Tensor columns(const Tensor& out, size_t i) const { return out.columns(parts.at(i).begin, parts.at(i).end); }
};

class Model {
 public:
  // `random:NAME[:SEED]` makes weights; anything else is a Hugging Face folder with config.json and
  // model.safetensors or its shards (float32, float16, bfloat16, FP8 with block scales). Nothing is
  // half-loaded.
  // Error: unknown name or type; a tensor missing, extra or of another shape; damaged file; out of
  // memory.
  static Model open(Backend& backend, const std::string& name_or_folder);

  // Random weights for any spec.
  static Model random(Backend& backend, ModelSpec spec, uint64_t seed);

  // The same for a tensor-parallel group, each backend being one of its ranks: the first one's part, with the others'
  // as peers(). Loads all on this thread, a tensor at a time, so that a host holds each once and a device its part.
  // Error: part_of.
  static Model open(std::span<Backend* const> ranks, const std::string& name_or_folder);
  static Model random(std::span<Backend* const> ranks, ModelSpec spec, uint64_t seed);

  Backend& backend() const { return *backend_; }
  const ModelSpec& spec() const { return spec_; }  // of a rank: its part
  std::span<const Model> peers() const { return peers_; }  // of the first rank: the others, in order
  // What cache keys carry, so that residues of two models never meet.
  const std::string& identity() const { return identity_; }
  // Tensors of the checkpoint it was read from, those of no use to a text model too; 0 of random weights.
  int64_t stored_tensors() const { return stored_tensors_; }
  // By its name in tensor_specs(), or layers.N.linear.log_decay [Hv] of Lightning attention; an absent name is an internal error.
  const Tensor& weight(const std::string& name) const;
  // By its name in stack_specs(); an absent one is an internal error. Its parts are weights by their own names too.
  const Stack& stack(const std::string& name) const;
  const Tensor& lm_head() const {
    return weight(spec_.tied ? "embed" : "lm_head");
  }

 private:
  Model(Backend& backend, ModelSpec spec, std::string identity);
  using FillFn = std::function<void(Model& part, const TensorSpec& tensor, const TensorSpec& whole)>;
  static Model make(std::span<Backend* const> ranks, const ModelSpec& spec, const std::string& identity,
                    const FillFn& fill);
  void allocate();
  void put_slopes();
  void put(const Tensor& weight, const std::vector<float>& values);
  void put_part(const TensorSpec& tensor, const TensorSpec& whole, const std::vector<float>& values);

  Backend* backend_;
  ModelSpec spec_;
  std::string identity_;
  int64_t stored_tensors_ = 0;
  std::vector<Buffer> memory_;
  std::map<std::string, Tensor> weights_;
  std::map<std::string, Stack> stacks_;
  std::vector<Model> peers_;
};

// Writes a model's folder, its config.json and model.safetensors in float32 or bfloat16. `backend` must be a CPU backend.
void write_model(const Model& model, const std::string& folder, DType dtype);

}  // namespace hypic
