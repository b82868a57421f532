#include "models/checkpoint.h"

#include <algorithm>
#include <atomic>
#include <charconv>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <thread>

#include "core/check.h"
#include "core/file.h"
#include "core/json.h"

namespace hypic {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxIndex = 64 << 20;
constexpr size_t kMaxShards = 4096;
constexpr int64_t kFp8Block = 128;
constexpr std::string_view kLmHead = "lm_head.weight";

std::string shape_string(const std::vector<int64_t>& shape) {
  return Tensor(nullptr, DType::u8, shape).shape_string();
}

bool same_shape(const Tensor& tensor, const std::vector<int64_t>& shape) {
  return tensor.rank == static_cast<int>(shape.size()) &&
         std::equal(shape.begin(), shape.end(), tensor.shape.begin());
}

int64_t size_of_shape(const std::vector<int64_t>& shape) {
  int64_t size = 1;
  for (const int64_t n : shape) size *= n;
  return size;
}

// The name without the checkpoint's prefix; nothing for tensors that text models do not use.
std::optional<std::string> plain_name(const std::string& name, const CheckpointNames& names) {
  const auto ignored = [&](const std::string& candidate) {
    return std::any_of(names.ignored.begin(), names.ignored.end(), [&](std::string_view part) {
      return part.front() == '.' ? candidate.ends_with(part) : candidate.starts_with(part);
    });
  };
  if (ignored(name)) return {};
  std::string_view longest;
  for (const std::string_view prefix : names.prefixes)
    if (name.starts_with(prefix) && prefix.size() > longest.size()) longest = prefix;
  return name.substr(longest.size());
}

// Layers past the last that config.json knows of, for speculative decoding.
bool is_later_layer(const std::string& name, const ModelSpec& spec) {
  constexpr std::string_view kLayers = "layers.";
  if (!name.starts_with(kLayers)) return false;
  int64_t layer = -1;
  std::from_chars(name.data() + kLayers.size(), name.data() + name.size(), layer);
  return spec.layer_count() <= layer && layer < spec.layer_count() + spec.later_layers;
}

// FP8 weights are stored with a scale for each block of 128 × 128, which multiplies.
std::string scale_name(const std::string& name) {
  constexpr std::string_view kWeight = ".weight";
  return (name.ends_with(kWeight) ? name.substr(0, name.size() - kWeight.size()) : name) +
         ".weight_scale_inv";
}

std::vector<int64_t> scale_shape(const std::vector<int64_t>& shape) {
  return {(shape[0] + kFp8Block - 1) / kFp8Block, (shape[1] + kFp8Block - 1) / kFp8Block};
}

// By tensor, the file of the index that holds it.
std::map<std::string, std::string> read_index(const std::string& index) {
  const nlohmann::json json = parse_json(read_file(index, kMaxIndex), index);
  const auto map = json.is_object() ? json.find("weight_map") : json.end();
  require(json.is_object() && map != json.end() && map->is_object() && !map->empty(), index,
          ": has no weight_map from tensors to files");
  std::map<std::string, std::string> files;
  std::set<std::string> distinct;
  for (const auto& [tensor, file] : map->items()) {
    require(file.is_string(), index, ": the file of ", tensor, " must be a string, is ", shown(file));
    const std::string name = file;
    require(!name.empty() && name.find('/') == name.npos && name.find('\0') == name.npos && name != "..", index,
            ": ", shown(file), " is no file of this folder");
    files[tensor] = name;
    distinct.insert(name);
    require(distinct.size() <= kMaxShards, index, ": names more than ", kMaxShards, " files");
  }
  return files;
}

}  // namespace

Checkpoint::Checkpoint(const std::string& folder, const ModelSpec& spec) : folder_(folder) {
  const CheckpointNames names = checkpoint_names(spec);
  const std::string single = folder + "/model.safetensors", index = single + ".index.json";
  std::error_code error;
  std::map<std::string, std::string> indexed;
  std::set<std::string> paths = {single}, found;
  if (!fs::exists(single, error)) {
    require(fs::exists(index, error), folder, ": holds neither model.safetensors nor model.safetensors.index.json",
            ", which names its shards");
    indexed = read_index(index);
    paths.clear();
    for (const auto& [tensor, file] : indexed) paths.insert(folder + "/" + file);
  }
  prefix_ = names.prefixes.front();
  for (const std::string& path : paths) files_.emplace_back(path);
  for (const Safetensors& file : files_) {
    stamp_ += str(fs::file_size(file.path(), error), ":",
                  fs::last_write_time(file.path(), error).time_since_epoch().count(), ":");
    for (const auto& [name, tensor] : file.tensors()) {
      ++tensor_count_;
      if (!indexed.empty()) {
        const auto at = indexed.find(name);
        require(at != indexed.end() && folder + "/" + at->second == file.path(), file.path(), ": tensor ", name,
                at == indexed.end() ? " is not in " : " is in another file by ", index);
        found.insert(name);
      }
      const std::optional<std::string> plain = plain_name(name, names);
      if (!plain || is_later_layer(*plain, spec)) continue;
      const auto [known, fresh] = stored_.emplace(*plain, Stored{&tensor, &file.path(), &name});
      require(fresh, file.path(), ": tensor ", name, " appears a second time",
              known->second.file == &file.path() ? ", under another prefix" : ", it is in " + *known->second.file);
    }
  }
  for (const auto& [name, file] : indexed)
    require(found.count(name), index, ": tensor ", name, " is not in ", file, ", which it names");
  account(spec);
}

Sha256::Digest Checkpoint::digest() const {
  std::vector<std::pair<std::string_view, const Tensor*>> tensors;
  for (const Safetensors& file : files_)
    for (const auto& [name, tensor] : file.tensors()) tensors.emplace_back(name, &tensor);
  std::sort(tensors.begin(), tensors.end());  // however they are spread over files
  std::vector<Sha256::Digest> digests(tensors.size());
  std::atomic<size_t> next = 0;
  const auto work = [&] {
    for (size_t i = next++; i < tensors.size(); i = next++) {
      const auto& [name, tensor] = tensors[i];
      Sha256 sha;
      sha.add(std::string(name)).add(std::string(name_of(tensor->dtype))).add(tensor->shape_string());
      digests[i] = sha.add(tensor->data, static_cast<size_t>(tensor->bytes())).digest();
    }
  };
  {
    std::vector<std::jthread> threads(std::thread::hardware_concurrency());
    for (std::jthread& thread : threads) thread = std::jthread(work);
    work();
  }
  return Sha256().add(digests.data(), digests.size() * sizeof(digests[0])).digest();
}

void Checkpoint::account(const ModelSpec& spec) {
  std::set<std::string> used, missing;
  const std::vector<TensorSpec> specs = tensor_specs(spec);
  for (const TensorSpec& tensor : specs) {
    for (const Piece& piece : source_of(tensor)) {
      const auto found = stored_.find(piece.name);
      if (found == stored_.end()) {
        missing.insert(piece.name);
        continue;
      }
      const auto& [stored, file, name] = found->second;
      require(same_shape(*stored, piece.shape), *file, ": tensor ", *name, " has shape ",
              stored->shape_string(), ", config.json asks for ", shape_string(piece.shape));
      used.insert(piece.name);
      const DType dtype = stored->dtype;
      if (dtype == DType::f8_e4m3) {
        require(piece.shape.size() == 2, *file, ": tensor ", *name, " is float8_e4m3 and no matrix");
        const std::string scale = scale_name(piece.name);
        const auto at = stored_.find(scale);
        require(at != stored_.end(), *file, ": tensor ", scale_name(*name), ", the scales of ", *name, ", is missing");
        require(same_shape(*at->second.tensor, scale_shape(piece.shape)) && at->second.tensor->dtype == DType::f32,
                *file, ": tensor ", *at->second.name, " must be float32 ", shape_string(scale_shape(piece.shape)));
        used.insert(scale);
        continue;
      }
      require(dtype == DType::f32 || dtype == DType::bf16 || dtype == DType::f16, *file, ": tensor ", *name,
              " is ", name_of(dtype), "; float32, float16, bfloat16 and float8_e4m3 are supported");
    }
  }
  if (!missing.empty()) {
    const std::string first = *missing.begin() == kLmHead ? *missing.begin() : str(prefix_, *missing.begin());
    fail(folder_, ": tensor ", first, " is missing",
         missing.size() > 1 ? str(", and ", missing.size() - 1, " more") : std::string(), "; config.json asks for it");
  }
  const auto no_part = [&](const std::string& plain) { return !used.count(plain) && !(spec.tied && plain == kLmHead); };
  const auto others =
      std::count_if(stored_.begin(), stored_.end(), [&](const auto& one) { return no_part(one.first); });
  for (const auto& [plain, stored] : stored_) {
    if (used.count(plain)) continue;
    require(!no_part(plain), *stored.file, ": tensor ", *stored.name, " is not part of this model",
            others > 1 ? str(", nor are ", others - 1, " more") : "", "; does config.json belong to it?");
    // A head beside a tied embedding must be a copy of it.
    const Piece& embedding = specs.front().sources.front().front();
    const Tensor& head = *stored.tensor;
    const Tensor& table = *stored_.at(embedding.name).tensor;
    require(head.dtype == table.dtype && same_shape(head, embedding.shape) &&
                std::memcmp(head.data, table.data, table.bytes()) == 0,
            *stored.file, ": tensor ", *stored.name,
            " is not the embedding, though config.json says tie_word_embeddings");
  }
}

const std::vector<Piece>& Checkpoint::source_of(const TensorSpec& tensor) const {
  const auto there = [&](const Piece& piece) {
    const auto found = stored_.find(piece.name);
    return found != stored_.end() && same_shape(*found->second.tensor, piece.shape);
  };
  for (const std::vector<Piece>& source : tensor.sources)
    if (std::all_of(source.begin(), source.end(), there)) return source;
  return tensor.sources.front();
}

void Checkpoint::read(const TensorSpec& tensor, float* out) const {
  for (const Piece& piece : source_of(tensor)) {
    read_piece(piece, out);
    const int64_t width = size_of_shape(piece.shape) / piece.shape[0];
    out += (piece.rows.empty() ? piece.shape[0] : static_cast<int64_t>(piece.rows.size())) * width;
  }
}

void Checkpoint::read_piece(const Piece& piece, float* out) const {
  const Stored& stored = stored_.at(piece.name);
  const Tensor& tensor = *stored.tensor;
  const int64_t width = size_of_shape(piece.shape) / piece.shape[0];
  const int64_t count = piece.rows.empty() ? piece.shape[0] : static_cast<int64_t>(piece.rows.size());
  const Tensor* scales = tensor.dtype == DType::f8_e4m3 ? stored_.at(scale_name(piece.name)).tensor : nullptr;
  visit_float(tensor.dtype, [&](auto zero) {
    using T = decltype(zero);
    for (int64_t i = 0; i < count; ++i) {
      const int64_t row = piece.rows.empty() ? i : piece.rows[i];
      for (int64_t j = 0; j < width; ++j) {
        T x;  // the file may leave it unaligned
        std::memcpy(&x, static_cast<const char*>(tensor.data) + (row * width + j) * sizeof(T), sizeof(T));
        float value = static_cast<float>(x);
        if (scales) {
          float scale;
          const int64_t block = row / kFp8Block * scales->shape[1] + j / kFp8Block;
          std::memcpy(&scale, static_cast<const char*>(scales->data) + block * sizeof(float), sizeof(float));
          value *= scale;
        }
        require(std::isfinite(value), *stored.file, ": tensor ", *stored.name, " is not finite at element ",
                row * width + j);
        *out++ = value;
      }
    }
  });
}

void write_checkpoint(const std::string& folder, const ModelSpec& spec,
                      const std::vector<std::vector<float>>& values, DType dtype) {
  require(dtype == DType::f32 || dtype == DType::bf16, "models are written in float32 or bfloat16");
  const std::vector<TensorSpec> specs = tensor_specs(spec);
  HYPIC_CHECK(values.size() == specs.size());
  struct Out {
    std::vector<int64_t> shape;
    std::vector<float> elements;
    DType dtype;
  };
  std::map<std::string, Out> stored;
  for (size_t t = 0; t < specs.size(); ++t) {
    const float* from = values[t].data();
    for (const Piece& piece : specs[t].sources.front()) {
      Out& out = stored[piece.name];
      const int64_t width = size_of_shape(piece.shape) / piece.shape[0];
      const int64_t count = piece.rows.empty() ? piece.shape[0] : static_cast<int64_t>(piece.rows.size());
      out.shape = piece.shape;
      out.elements.resize(size_of_shape(piece.shape));
      out.dtype = specs[t].in_state_dtype() ? DType::f32 : dtype;
      for (int64_t i = 0; i < count; ++i, from += width)
        std::copy_n(from, width, out.elements.data() + (piece.rows.empty() ? i : piece.rows[i]) * width);
    }
  }
  const std::string_view prefix = checkpoint_names(spec).prefixes.front();
  std::vector<std::vector<BFloat16>> rounded;
  std::vector<std::pair<std::string, Tensor>> tensors;
  for (auto& [name, out] : stored) {
    void* data = out.elements.data();
    if (out.dtype == DType::bf16) {
      std::vector<BFloat16>& half = rounded.emplace_back();
      for (const float x : out.elements) half.push_back(BFloat16::from(x));
      data = half.data();
    }
    tensors.emplace_back(name == kLmHead ? name : str(prefix, name), Tensor(data, out.dtype, out.shape));
  }
  write_safetensors(folder + "/model.safetensors", tensors);
}

}  // namespace hypic
