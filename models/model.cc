#include "models/model.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <iomanip>
#include <vector>

#include "core/check.h"
#include "core/file.h"
#include "models/checkpoint.h"
#include "models/random_weights.h"
#include "models/tensor_parallel.h"

namespace hypic {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kRandom = "random:";
constexpr size_t kMaxConfig = 16 << 20;
constexpr int64_t kStackAlign = 8;  // rows, of Stack::Part::begin

int64_t aligned(int64_t rows) { return (rows + kStackAlign - 1) / kStackAlign * kStackAlign; }

DType weight_dtype(const Backend& backend, const TensorSpec& tensor) {
  return tensor.in_state_dtype() ? backend.state_dtype() : backend.compute_dtype();
}

// Whole models that do not fit are refused before the first byte.
void require_memory(const Backend& backend, const ModelSpec& spec) {
  size_t needed = 0;
  for (const TensorSpec& tensor : tensor_specs(spec))
    needed += static_cast<size_t>(tensor.size()) * size_of(weight_dtype(backend, tensor));
  const size_t available = backend.available_bytes();
  if (needed < available) return;
  const auto gib = [](size_t bytes) { return static_cast<double>(bytes >> 20) / 1024; };
  throw OutOfMemory(str(std::fixed, std::setprecision(1), spec.name, ": out of memory: the weights take ",
                        gib(needed), " GiB in ", name_of(backend.compute_dtype()), ", backend ", backend.name(),
                        " has ", gib(available), " GiB free; the small twin of a named model is NAME-tiny"));
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
    : backend_(&backend), spec_(std::move(spec)), identity_(std::move(identity)) {
  allocate();
}

// Memory of all tensors, for others to fill.
void Model::allocate() {
  std::map<std::string, TensorSpec> alone;
  for (TensorSpec& tensor : tensor_specs(spec_)) alone[tensor.name] = std::move(tensor);
  for (const StackSpec& spec : stack_specs(spec_)) {
    Stack stack;
    int64_t rows = 0, width = 0;
    for (const std::string& name : spec.parts) {
      const auto found = alone.find(name);
      HYPIC_CHECK(found != alone.end(), "no tensor ", name);
      const TensorSpec& tensor = found->second;
      if (width == 0) width = tensor.shape.back();
      HYPIC_CHECK(tensor.shape.size() == 2 && tensor.shape[1] == width && !tensor.in_state_dtype(), name, " in ",
                  spec.name);
      stack.parts.push_back({rows, rows + tensor.shape[0]});
      rows = aligned(rows + tensor.shape[0]);
      alone.erase(found);
    }
    stack.weights = memory_.emplace_back(*backend_, backend_->compute_dtype(), std::initializer_list{rows, width});
    for (size_t i = 0; i < spec.parts.size(); ++i) {
      const auto [begin, end] = stack.parts[i];
      weights_[spec.parts[i]] = stack.weights.rows(begin, end);
      backend_->fill_zero(stack.weights.rows(end, aligned(end)));
    }
    stacks_[spec.name] = std::move(stack);
  }
  for (const auto& [name, tensor] : alone)
    weights_[name] = memory_.emplace_back(*backend_, weight_dtype(*backend_, tensor), tensor.shape);
}

Model Model::open(Backend& backend, const std::string& name) {
  Backend* const one = &backend;
  return open(std::span(&one, 1), name);
}

Model Model::random(Backend& backend, ModelSpec spec, uint64_t seed) {
  Backend* const one = &backend;
  return random(std::span(&one, 1), std::move(spec), seed);
}

// Every rank's part of a model, tensor by tensor.
Model Model::make(std::span<Backend* const> ranks, const ModelSpec& spec, const std::string& identity,
                  const FillFn& fill) {
  const auto count = static_cast<int>(ranks.size());
  std::vector<Model> parts;
  for (int rank = 0; rank < count; ++rank) {
    ranks[rank]->enter_thread();
    ModelSpec part = part_of(spec, rank, count);
    require_memory(*ranks[rank], part);
    parts.push_back(Model(*ranks[rank], std::move(part), identity));
  }
  const std::vector<TensorSpec> whole = tensor_specs(spec);
  std::vector<std::vector<TensorSpec>> cut;
  for (const Model& part : parts) cut.push_back(tensor_specs(part.spec_));
  for (size_t t = 0; t < whole.size(); ++t)
    for (int rank = 0; rank < count; ++rank) {
      ranks[rank]->enter_thread();
      fill(parts[rank], cut[rank][t], whole[t]);
    }
  for (int rank = count - 1; rank >= 0; --rank) {  // the thread stays the first one's
    ranks[rank]->enter_thread();
    parts[rank].put_slopes();
  }
  Model first = std::move(parts.front());
  first.peers_.assign(std::make_move_iterator(parts.begin() + 1), std::make_move_iterator(parts.end()));
  return first;
}

Model Model::open(std::span<Backend* const> ranks, const std::string& name) {
  Source source = parse_source(name);
  if (source.config.empty()) return random(ranks, std::move(source.spec), source.seed);
  const Checkpoint checkpoint(name, source.spec);
  std::vector<float> values;
  std::string read;  // whose they are
  Model model = make(ranks, source.spec, str(fs::canonical(name).string(), ":", checkpoint.stamp(), source.config),
                     [&](Model& part, const TensorSpec& tensor, const TensorSpec& whole) {
                       if (read != whole.name) {
                         values.resize(whole.size());
                         checkpoint.read(whole, values.data());
                         read = whole.name;
                       }
                       part.put_part(tensor, whole, values);
                     });
  model.stored_tensors_ = checkpoint.tensor_count();
  return model;
}

const Tensor& Model::weight(const std::string& name) const {
  const auto found = weights_.find(name);
  HYPIC_CHECK(found != weights_.end(), "no weight ", name);
  return found->second;
}

const Stack& Model::stack(const std::string& name) const {
  const auto found = stacks_.find(name);
  HYPIC_CHECK(found != stacks_.end(), "no stack ", name);
  return found->second;
}

// Lightning attention's decays are the architecture's own.
void Model::put_slopes() {
  if (spec_.slopes.empty()) return;
  const int64_t heads = spec_.linear.value_heads;
  std::vector<float> values(heads);
  for (int l = 0; l < spec_.layer_count(); ++l) {
    if (!spec_.layers[l].linear) continue;
    for (int64_t h = 0; h < heads; ++h) values[h] = static_cast<float>(-spec_.slopes[l * heads + h]);
    const Buffer& slopes = memory_.emplace_back(*backend_, backend_->state_dtype(), std::initializer_list{heads});
    put(slopes, values);
    weights_[str("layers.", l, ".linear.log_decay")] = slopes;
  }
}

void Model::put(const Tensor& weight, const std::vector<float>& values) {
  if (weight.dtype == DType::f32) {
    backend_->upload(weight, values.data());
  } else if (weight.dtype == DType::bf16) {
    std::vector<BFloat16> rounded;
    rounded.reserve(values.size());
    for (const float x : values) rounded.push_back(BFloat16::from(x));
    backend_->upload(weight, rounded.data());
  } else {
    HYPIC_CHECK(weight.dtype == DType::f64, "weights as ", name_of(weight.dtype));
    const std::vector<double> wide(values.begin(), values.end());
    backend_->upload(weight, wide.data());
  }
}

// Of a tensor's values, those that this part has.
void Model::put_part(const TensorSpec& tensor, const TensorSpec& whole, const std::vector<float>& values) {
  if (tensor.cut.ranges.empty()) return put(weight(tensor.name), values);
  std::vector<float> own;
  own.reserve(tensor.size());
  for_each_piece(whole.shape, tensor.cut, [&](const CutPiece& piece) {
    for (int64_t row = 0; row < piece.rows; ++row) {
      const auto from = values.begin() + piece.first + row * piece.stride;
      own.insert(own.end(), from, from + piece.columns);
    }
  });
  put(weight(tensor.name), own);
}

Model Model::random(std::span<Backend* const> ranks, ModelSpec spec, uint64_t seed) {
  return make(ranks, spec, str(kRandom, spec.name, ":", seed),
              [&](Model& part, const TensorSpec& tensor, const TensorSpec& whole) {
                const RandomTensor draw = random_tensor(spec, whole, seed);
                if (!draw.values.empty()) return part.put_part(tensor, whole, draw.values);
                const Tensor all = part.weight(tensor.name).reshape({tensor.size()});
                int64_t done = 0;
                // Number i of the stream takes two of its numbers.
                for_each_piece(whole.shape, tensor.cut, [&](const CutPiece& piece) {
                  const int64_t end = done + piece.rows * piece.columns;
                  const uint64_t stream = draw.stream + 2 * static_cast<uint64_t>(piece.first);
                  part.backend().random_normal(
                      {all.rows(done, end), stream, draw.mean, draw.deviation, piece.columns, piece.stride});
                  done = end;
                });
              });
}

void write_model(const Model& model, const std::string& folder, DType dtype) {
  HYPIC_CHECK(!model.spec().whole, "only whole models are written");
  fs::create_directories(folder);
  std::vector<std::vector<float>> values;
  for (const TensorSpec& tensor : tensor_specs(model.spec())) {
    const Tensor& weight = model.weight(tensor.name);
    std::vector<float>& out = values.emplace_back(weight.size());
    if (weight.dtype == DType::f32) {
      model.backend().download(out.data(), weight);
      continue;
    }
    std::vector<double> wide(weight.size());
    HYPIC_CHECK(weight.dtype == DType::f64, "weights as ", name_of(weight.dtype));
    model.backend().download(wide.data(), weight);
    std::copy(wide.begin(), wide.end(), out.begin());
  }
  write_checkpoint(folder, model.spec(), values, dtype);
  std::ofstream file(folder + "/config.json");
  file << model.spec().config << "\n";
  require(file.good(), folder, "/config.json: cannot write");
}

}  // namespace hypic
