#include <cstring>
#include <utility>
#include <vector>

#include "core/fuzz.h"
#include "core/safetensors.h"
#include "core/temporary_folder.h"

namespace hypic {
namespace {

// A file as it is, or a header and data to put behind its length, which mutation seldom gets right.
std::string file_of(std::string_view input) {
  if (!input.starts_with('{')) return std::string(input);
  const auto [header, bytes] = parts_of<2>(input);
  const uint64_t length = header.size();
  std::string file(sizeof(length), '\0');
  std::memcpy(file.data(), &length, sizeof(length));
  return file.append(header).append(bytes);
}

void check(const TemporaryFolder& folder, std::string_view input) {
  const std::string bytes = file_of(input);
  const std::string path = folder.write("model.safetensors", bytes);
  std::vector<std::pair<std::string, Tensor>> tensors;
  const Safetensors file(path);
  uint64_t header = 0;
  std::memcpy(&header, bytes.data(), sizeof(header));
  size_t end = sizeof(header) + header;
  for (const auto& [name, tensor] : file.tensors()) {
    HYPIC_CHECK(tensor.contiguous() && tensor.bytes() >= 0, name);
    end += static_cast<size_t>(tensor.bytes());
    const std::string copy(static_cast<const char*>(tensor.data),
                           static_cast<size_t>(tensor.bytes()));
    HYPIC_CHECK(bytes.find(copy) != bytes.npos, name);
    tensors.emplace_back(name, tensor);
  }
  HYPIC_CHECK(end == bytes.size(), "tensors end at ", end, " of ", bytes.size());

  const std::string written = folder.path() + "/written.safetensors";
  write_safetensors(written, tensors);
  const Safetensors again(written);
  HYPIC_CHECK(again.tensors().size() == tensors.size());
  for (const auto& [name, tensor] : tensors) {
    const Tensor& other = again.tensors().at(name);
    HYPIC_CHECK(other.dtype == tensor.dtype && other.shape_string() == tensor.shape_string() &&
                    std::memcmp(other.data, tensor.data, static_cast<size_t>(tensor.bytes())) == 0,
                name);
  }
}

}  // namespace
}  // namespace hypic

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const hypic::TemporaryFolder folder;
  hypic::takes([&] { hypic::check(folder, hypic::as_text(data, size)); });
  return 0;
}
