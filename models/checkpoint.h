// A Hugging Face folder's weights: model.safetensors, or the shards that model.safetensors.index.json lists.
// Files are memory-mapped; every tensor is accounted for before the first is read.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "core/safetensors.h"
#include "core/sha256.h"
#include "models/spec.h"

namespace hypic {

class Checkpoint {
 public:
  // Error: a file missing, damaged or naming tensors twice; a tensor of the spec missing, of another shape or
  // of an unsupported dtype; a tensor that is no part of the model.
  Checkpoint(const std::string& folder, const ModelSpec& spec);

  // What changes when a file does: sizes and times. Cheap, and of this machine alone.
  const std::string& stamp() const { return stamp_; }
  // Of what the files hold, wherever they lie: every tensor's name, dtype, shape and bytes. Reads all of them.
  Sha256::Digest digest() const;
  // Of all files.
  int64_t tensor_count() const { return tensor_count_; }

  // The tensor's elements, tensor.size() of them. Error: one that is not finite.
  void read(const TensorSpec& tensor, float* out) const;

 private:
  struct Stored {
    const Tensor* tensor = nullptr;
    const std::string* file = nullptr;
    const std::string* name = nullptr;  // there
  };
  void account(const ModelSpec& spec);
  const std::vector<Piece>& source_of(const TensorSpec& tensor) const;
  void read_piece(const Piece& piece, float* out) const;

  std::string folder_, stamp_, prefix_;
  int64_t tensor_count_ = 0;
  std::vector<Safetensors> files_;
  std::map<std::string, Stored> stored_;  // by name without prefix
};

// Writes elements as a checkpoint's tensors: the inverse of Checkpoint::read. `values` gives the elements of
// each of tensor_specs(spec); float32 or bfloat16, decays and router biases float32 in any case.
void write_checkpoint(const std::string& folder, const ModelSpec& spec,
                      const std::vector<std::vector<float>>& values, DType dtype);

}  // namespace hypic
