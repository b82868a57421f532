#include "models/model.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>
#include <vector>

#include "core/check.h"
#include "core/file.h"
#include "core/safetensors.h"
#include "models/random_weights.h"

namespace hypic {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kRandom = "random:";
constexpr size_t kMaxConfig = 16 << 20;

bool is_gate(const TensorSpec& tensor) {
  return tensor.init == Init::A_log || tensor.init == Init::dt_bias;
}

// Gates and states live in the state dtype, the rest in the compute dtype.
DType weight_dtype(const Backend& backend, const TensorSpec& tensor) {
  return is_gate(tensor) ? backend.state_dtype() : backend.compute_dtype();
}

std::string shape_of(const TensorSpec& tensor) {
  std::string text = "[";
  for (size_t i = 0; i < tensor.shape.size(); ++i) text += str(i ? ", " : "", tensor.shape[i]);
  return text + "]";
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

// The name without the checkpoint's prefix; empty for tensors that text models do not use.
std::string plain_name(const std::string& name) {
  for (const std::string_view ignored : {"model.visual.", "visual.", "mtp."})
    if (name.starts_with(ignored)) return "";
  for (const std::string_view prefix : {"model.language_model.", "model."})
    if (name.starts_with(prefix)) return name.substr(prefix.size());
  return name;
}

// What a name or a folder says before any weight is touched.
struct Source {
  ModelSpec spec;
  uint64_t seed = 0;   // random:
  std::string config;  // a folder's config.json; empty for random:
};

Source parse_source(const std::string& name) {
  Source source;
  if (name.starts_with(kRandom)) {
    const std::string rest = name.substr(kRandom.size());
    const size_t colon = rest.find(':');
    if (colon != std::string::npos) {
      const char* end = rest.data() + rest.size();
      const auto [stop, error] = std::from_chars(rest.data() + colon + 1, end, source.seed);
      require(error == std::errc{} && stop == end, name,
              ": the seed after the second colon must be a non-negative integer");
    }
    source.spec = spec_named(rest.substr(0, colon));
    return source;
  }
  std::error_code error;
  require(fs::is_directory(name, error), name,
          ": no such folder; a model is random:NAME[:SEED] or a folder with "
          "config.json and model.safetensors");
  source.config = read_file(name + "/config.json", kMaxConfig);
  source.spec = spec_from_config(source.config, name + "/config.json");
  source.spec.name = fs::path(name).lexically_normal().filename();
  if (source.spec.name.empty()) source.spec.name = name;
  return source;
}

}  // namespace

ModelSpec spec_of(const std::string& name_or_folder) { return parse_source(name_or_folder).spec; }

Model::Model(Backend& backend, ModelSpec spec, std::string identity)
    : backend_(&backend), spec_(std::move(spec)), identity_(std::move(identity)) {}

Model Model::open(Backend& backend, const std::string& name) {
  Source source = parse_source(name);
  if (source.config.empty()) return random(backend, std::move(source.spec), source.seed);
  const std::string file = name + "/model.safetensors";
  std::error_code error;
  const auto bytes = fs::file_size(file, error);
  require(!error, file, ": cannot read: ", error.message());
  const auto time = fs::last_write_time(file, error).time_since_epoch().count();
  Model model(backend, std::move(source.spec),
              str(fs::canonical(name).string(), ":", bytes, ":", time, ":", source.config));
  model.load_folder(name);
  return model;
}

const Tensor& Model::weight(const std::string& name) const {
  const auto found = weights_.find(name);
  HYPIC_CHECK(found != weights_.end(), "no weight ", name);
  return found->second;
}

void Model::put(const TensorSpec& tensor, const float* values) {
  const DType dtype = weight_dtype(*backend_, tensor);
  Buffer weight(*backend_, dtype, tensor.shape);
  if (dtype == DType::f32) {
    backend_->upload(weight, values);
  } else {
    HYPIC_CHECK(dtype == DType::f64, "weights as ", name_of(dtype));
    const std::vector<double> wide(values, values + weight.tensor().size());
    backend_->upload(weight, wide.data());
  }
  weights_[tensor.name] = std::move(weight);
}

Model Model::random(Backend& backend, ModelSpec spec, uint64_t seed) {
  Model model(backend, std::move(spec), "");
  model.identity_ = str(kRandom, model.spec_.name, ":", seed);
  std::vector<float> values;
  for (const TensorSpec& tensor : tensor_specs(model.spec_)) {
    values.resize(size_of_shape(tensor.shape));
    fill_random(model.spec_, tensor, seed, values.data());
    model.put(tensor, values.data());
  }
  return model;
}

void Model::load_folder(const std::string& folder) {
  const Safetensors file(folder + "/model.safetensors");
  std::map<std::string, const Tensor*> found;
  for (const auto& [name, tensor] : file.tensors()) {
    const std::string plain = plain_name(name);
    if (plain.empty()) continue;
    require(found.emplace(plain, &tensor).second, file.path(), ": tensor ", plain,
            " appears under two prefixes");
  }
  // Every tensor is accounted for before the first is loaded.
  const std::vector<TensorSpec> specs = tensor_specs(spec_);
  std::set<std::string> known;
  for (const TensorSpec& spec : specs) {
    known.insert(spec.name);
    const auto tensor = found.find(spec.name);
    require(tensor != found.end(), file.path(), ": tensor ", spec.name,
            " is missing; config.json asks for ", specs.size(), " tensors, the file has ",
            found.size());
    require(same_shape(*tensor->second, spec.shape), file.path(), ": tensor ", spec.name,
            " has shape ", tensor->second->shape_string(), ", config.json asks for ",
            shape_of(spec));
    const DType dtype = tensor->second->dtype;
    require(dtype == DType::f32 || dtype == DType::bf16 || dtype == DType::f16, file.path(),
            ": tensor ", spec.name, " is ", name_of(dtype),
            "; float32, float16 and bfloat16 are supported");
  }
  for (const auto& [name, tensor] : found)
    require(known.count(name) || (spec_.tied && name == "lm_head.weight"), file.path(), ": tensor ",
            name, " is not part of this model; does config.json belong to it?");

  std::vector<float> values;
  for (const TensorSpec& spec : specs) {
    const Tensor& from = *found.at(spec.name);
    values.resize(from.size());
    visit_float(from.dtype, [&](auto zero) {
      using T = decltype(zero);
      for (int64_t i = 0; i < from.size(); ++i) {
        T x;  // the file may leave it unaligned
        std::memcpy(&x, static_cast<const char*>(from.data) + i * sizeof(T), sizeof(T));
        values[i] = static_cast<float>(x);
        require(std::isfinite(values[i]), file.path(), ": tensor ", spec.name,
                " is not finite at element ", i);
      }
    });
    put(spec, values.data());
  }
}

void write_model(const Model& model, const std::string& folder, DType dtype) {
  require(dtype == DType::f32 || dtype == DType::bf16, "models are written in float32 or bfloat16");
  fs::create_directories(folder);
  const ModelSpec& spec = model.spec();
  nlohmann::json config = {
      {"model_type", spec.model_type},
      {"vocab_size", spec.vocabulary},
      {"hidden_size", spec.hidden},
      {"intermediate_size", spec.ffn},
      {"num_hidden_layers", spec.layer_count()},
      {"rms_norm_eps", spec.norm_eps},
      {"tie_word_embeddings", spec.tied},
      {"max_position_embeddings", spec.max_positions},
      {"num_attention_heads", spec.attention.q_heads},
      {"num_key_value_heads", spec.attention.kv_heads},
      {"head_dim", spec.attention.head_dim},
      {"attn_output_gate", spec.attention.output_gate},
      {"rope_parameters",
       {{"rope_type", "default"},
        {"rope_theta", spec.attention.rope_theta},
        {"partial_rotary_factor",
         static_cast<double>(spec.attention.rotary_dim) / spec.attention.head_dim}}},
      {"linear_num_key_heads", spec.linear.key_heads},
      {"linear_num_value_heads", spec.linear.value_heads},
      {"linear_key_head_dim", spec.linear.key_dim},
      {"linear_value_head_dim", spec.linear.value_dim},
      {"linear_conv_kernel_dim", spec.linear.conv_width},
      {"output_gate_type", spec.linear.gate == Activation::sigmoid ? "sigmoid" : "swish"},
      {"hidden_act", "silu"}};
  for (const LayerKind kind : spec.layers)
    config["layer_types"].push_back(kind == LayerKind::linear ? "linear_attention"
                                                              : "full_attention");

  std::vector<std::vector<char>> memory;
  std::vector<std::pair<std::string, Tensor>> tensors;
  for (const TensorSpec& tensor : tensor_specs(spec)) {
    const Tensor& weight = model.weight(tensor.name);
    const int64_t size = weight.size();
    std::vector<char> held(weight.bytes());
    model.backend().download(held.data(), weight);
    // In bfloat16 a head would change its memory length.
    const DType stored = is_gate(tensor) ? DType::f32 : dtype;
    std::vector<char>& out = memory.emplace_back(size * size_of(stored));
    for (int64_t i = 0; i < size; ++i) {
      const float x = weight.dtype == DType::f64
                          ? static_cast<float>(reinterpret_cast<const double*>(held.data())[i])
                          : reinterpret_cast<const float*>(held.data())[i];
      const BFloat16 rounded = BFloat16::from(x);
      if (stored == DType::f32)
        std::memcpy(out.data() + i * 4, &x, 4);
      else
        std::memcpy(out.data() + i * 2, &rounded, 2);
    }
    const bool top_level = tensor.name == "lm_head.weight";
    tensors.emplace_back(top_level ? tensor.name : "model." + tensor.name,
                         Tensor(out.data(), stored, tensor.shape));
  }
  write_safetensors(folder + "/model.safetensors", tensors);
  std::ofstream file(folder + "/config.json");
  file << config.dump(2) << "\n";
  require(file.good(), folder, "/config.json: cannot write");
}

}  // namespace hypic
