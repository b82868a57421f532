// The safetensors file format: 8 bytes header length, a JSON header, tensor bytes. Files are untrusted: the
// header is bounded and every range is checked before a tensor is handed out.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "core/tensor.h"

namespace hypic {

// A memory-mapped file, read only.
class Safetensors {
 public:
  // Error: file missing, truncated, header malformed, range or shape that does not fit, unknown dtype.
  explicit Safetensors(const std::string& path);
  Safetensors(Safetensors&& other) noexcept { *this = std::move(other); }
  Safetensors& operator=(Safetensors&& other) noexcept;
  ~Safetensors();

  const std::string& path() const { return path_; }
  // By name, in name order; the views die with this object and may be unaligned for their dtype.
  const std::map<std::string, Tensor>& tensors() const { return tensors_; }

 private:
  std::string path_;
  void* map_ = nullptr;
  size_t bytes_ = 0;
  std::map<std::string, Tensor> tensors_;
};

// Writes contiguous host tensors; the file appears whole or not at all.
void write_safetensors(const std::string& path, const std::vector<std::pair<std::string, Tensor>>& tensors);

}  // namespace hypic
