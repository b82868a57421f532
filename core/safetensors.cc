#include "core/safetensors.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>

#include "core/json.h"

namespace hypic {
namespace {

using nlohmann::json;

constexpr uint64_t kMaxHeader = 100u << 20;  // the format's own limit

constexpr std::pair<const char*, DType> kNames[] = {
    {"F64", DType::f64}, {"F32", DType::f32}, {"F16", DType::f16}, {"BF16", DType::bf16}, {"F8_E4M3", DType::f8_e4m3},
    {"I64", DType::i64}, {"I32", DType::i32}, {"U8", DType::u8}};

std::optional<DType> dtype_named(const std::string& name) {
  for (const auto& [text, dtype] : kNames)
    if (name == text) return dtype;
  return std::nullopt;
}

// A header entry as a view into data [bytes]; fails with the tensor's name.
Tensor parse_entry(const json& entry, char* data, uint64_t bytes, const std::string& where) {
  require(entry.is_object() && entry.contains("dtype") && entry["dtype"].is_string() &&
              entry.contains("shape") && entry["shape"].is_array() && entry.contains("data_offsets") &&
              entry["data_offsets"].is_array() && entry["data_offsets"].size() == 2,
          where, ": needs dtype, shape and data_offsets");
  const auto dtype = dtype_named(entry["dtype"]);
  require(dtype.has_value(), where, ": dtype ", entry["dtype"].dump(),
          " is not supported (F64, F32, F16, BF16, F8_E4M3, I64, I32, U8 are)");
  for (const json& bound : entry["data_offsets"])
    require(bound.is_number_unsigned(), where, ": data_offsets must be non-negative integers");
  const uint64_t begin = entry["data_offsets"][0], end = entry["data_offsets"][1];
  require(begin <= end && end <= bytes, where, ": bytes [", begin, ", ", end, ") lie outside the ", bytes,
          " bytes of data; the file is truncated or damaged");
  Tensor tensor;
  tensor.data = data + begin;
  tensor.dtype = *dtype;
  tensor.rank = static_cast<int>(entry["shape"].size());
  require(tensor.rank <= kMaxRank, where, ": rank ", tensor.rank, ", at most ", kMaxRank);
  uint64_t size = 1, bound = 1;  // the bound leaves out zeros, after which nothing overflows
  for (int axis = tensor.rank - 1; axis >= 0; --axis) {
    const json& dim = entry["shape"][axis];
    require(dim.is_number_unsigned(), where, ": shape must be non-negative integers");
    const uint64_t n = dim;
    require(n == 0 || bound <= std::numeric_limits<int64_t>::max() / 8 / n, where, ": shape overflows");
    bound *= n == 0 ? 1 : n;
    tensor.shape[axis] = static_cast<int64_t>(n);
    tensor.stride[axis] = static_cast<int64_t>(size);
    size *= n;
  }
  require(size * size_of(*dtype) == end - begin, where, ": shape ", tensor.shape_string(), " of ",
          name_of(*dtype), " needs ", size * size_of(*dtype), " bytes, the header gives ", end - begin);
  return tensor;
}

// The format wants every byte of data in exactly one tensor.
void check_coverage(const std::map<std::string, Tensor>& tensors, const char* data, uint64_t bytes,
                    const std::string& path) {
  std::map<uint64_t, const std::pair<const std::string, Tensor>*> by_begin;
  for (const auto& entry : tensors)
    if (entry.second.size() > 0) {
      const uint64_t begin = static_cast<const char*>(entry.second.data) - data;
      const auto [other, added] = by_begin.emplace(begin, &entry);
      require(added, path, ": tensors ", other->second->first, " and ", entry.first, " overlap");
    }
  uint64_t end = 0;
  for (const auto& [begin, entry] : by_begin) {
    require(begin == end, path, ": tensor ", entry->first, " begins at byte ", begin, " of the data, where the ",
            "tensor before it ends at ", end, "; the file is damaged");
    end = begin + entry->second.bytes();
  }
  require(end == bytes, path, ": tensors end at byte ", end, " of ", bytes, " bytes of data");
}

}  // namespace

Safetensors::Safetensors(const std::string& path) : path_(path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  require(fd >= 0, path, ": cannot open: ", std::strerror(errno));
  struct stat info;
  const bool ok = fstat(fd, &info) == 0 && S_ISREG(info.st_mode);
  bytes_ = ok ? static_cast<size_t>(info.st_size) : 0;
  void* map = bytes_ >= 8 ? mmap(nullptr, bytes_, PROT_READ, MAP_PRIVATE, fd, 0) : MAP_FAILED;
  close(fd);
  require(ok, path, ": not a regular file");
  require(bytes_ >= 8, path, ": ", bytes_, " bytes are too few for a safetensors file");
  require(map != MAP_FAILED, path, ": cannot map the file: ", std::strerror(errno));
  map_ = map;
  try {
    constexpr std::string_view kPointer = "version https://git-lfs";
    require(!std::string_view(static_cast<char*>(map_), bytes_).starts_with(kPointer), path,
            ": is a Git LFS pointer, not the file itself; fetch it by git lfs pull");
    uint64_t header_bytes;
    std::memcpy(&header_bytes, map_, 8);
    require(header_bytes <= kMaxHeader && header_bytes <= bytes_ - 8, path, ": header of ", header_bytes,
            " bytes does not fit the file of ", bytes_, "; truncated, or not a safetensors file");
    char* const header_text = static_cast<char*>(map_) + 8;
    const json header =
        parse_json(std::string_view(header_text, header_bytes), path + ": header");
    require(header.is_object(), path, ": the header is not a JSON object");
    for (const auto& [name, entry] : header.items())
      if (name != "__metadata__")
        tensors_[name] = parse_entry(entry, header_text + header_bytes, bytes_ - 8 - header_bytes,
                                     path + ": tensor " + name);
    check_coverage(tensors_, header_text + header_bytes, bytes_ - 8 - header_bytes, path);
  } catch (...) {
    munmap(map_, bytes_);
    throw;
  }
}

Safetensors& Safetensors::operator=(Safetensors&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(map_, other.map_);
  std::swap(bytes_, other.bytes_);
  std::swap(tensors_, other.tensors_);
  return *this;
}

Safetensors::~Safetensors() {
  if (map_) munmap(map_, bytes_);
}

void write_safetensors(const std::string& path,
                       const std::vector<std::pair<std::string, Tensor>>& tensors) {
  json header = json::object();
  int64_t offset = 0;
  for (const auto& [name, tensor] : tensors) {
    HYPIC_CHECK(tensor.contiguous(), name);
    std::vector<int64_t> shape(tensor.shape.begin(), tensor.shape.begin() + tensor.rank);
    const char* dtype = nullptr;
    for (const auto& [text, value] : kNames)
      if (value == tensor.dtype) dtype = text;
    header[name] = {{"dtype", dtype}, {"shape", shape}, {"data_offsets", {offset, offset + tensor.bytes()}}};
    offset += tensor.bytes();
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const std::string part = path + ".part";
  std::ofstream file(part, std::ios::binary);
  const uint64_t header_bytes = text.size();
  file.write(reinterpret_cast<const char*>(&header_bytes), 8);
  file << text;
  for (const auto& [name, tensor] : tensors) file.write(static_cast<const char*>(tensor.data), tensor.bytes());
  file.close();
  require(file.good() && std::rename(part.c_str(), path.c_str()) == 0, path, ": cannot write: ",
          std::strerror(errno));
}

}  // namespace hypic
