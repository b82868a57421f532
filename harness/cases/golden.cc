#include "harness/cases/golden.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>

#include "core/check.h"
#include "core/file.h"
#include "core/json.h"
#include "core/safetensors.h"
#include "harness/cases/arena.h"
#include "harness/cases/axes.h"
#include "harness/cases/family_case.h"
#include "harness/cases/layer.h"
#include "reference/laws.h"
#include "reports/text.h"

namespace hypic::golden {
namespace {

namespace fs = std::filesystem;
using namespace conformance;
using nlohmann::ordered_json;
using reference::InputSpec;
using reference::make_inputs;
using reference::make_state;
using reference::Role;
using reference::Style;
using reference::Vector;

constexpr uint64_t kSeed = 41;
constexpr int64_t kTokens = 100;  // of a sequence: more than a chunk
constexpr const char* kOp = "linear_attention";
constexpr size_t kMaxWorkloads = 16 << 20;  // bytes of a file of workloads
constexpr DType kOperands = DType::bf16, kGates = DType::f32;

// Parts of a token's step in Python, on S[n] [Hv, dk, dv] and rows of the value heads.
constexpr const char* kWrite = R"(            S[n] += torch.einsum("hi,hj->hij", k[t], v[t])
)";
constexpr const char* kDelta =
    R"(            error = v[t] - torch.einsum("hij,hi->hj", S[n], k[t])
            S[n] += torch.einsum("hi,hj->hij", beta[t, :, None] * k[t], error)
)";
constexpr const char* kScalarGate = "            S[n] *= g[t].exp()[:, None, None]\n";
constexpr const char* kDiagonalGate = "            S[n] *= g[t].exp()[:, :, None]\n";

// Empty: not exported.
std::string step_of(Family family) {
  switch (family) {
    case Family::retnet:
      return str("            S[n] *= gamma[:, None, None]\n", kWrite);
    case Family::lightning:
      return str("            S[n] *= (-s).exp()[:, None, None]\n", kWrite);
    case Family::gla:
      return str(kDiagonalGate, kWrite);
    case Family::delta_net:
      return kDelta;
    case Family::gated_delta_net:
      return str(kScalarGate, kDelta);
    case Family::kda:
      return str(kDiagonalGate, kDelta);
    default:
      return {};
  }
}

std::string python_of(const FamilyReference& family) {
  std::string names;
  for (const InputSpec& spec : family.inputs(kSymbols)) names += spec.name + ", ";
  return str("import torch\n\n\ndef run(", names, "S0, cu_seqlens):\n    ", names, "S = (x.double() for x in (", names,
             R"(S0))
    S, o, scale = S.clone(), torch.empty_like(v), k.shape[-1] ** -0.5
    q, k = (x.repeat_interleave(v.shape[1] // x.shape[1], 1) for x in (q, k))
    for n in range(S.shape[0]):
        for t in range(int(cu_seqlens[n]), int(cu_seqlens[n + 1])):
)",
             step_of(family.traits().family), R"(            o[t] = scale * torch.einsum("hij,hi->hj", S[n], q[t])
    return o, S
)");
}

// What is run on one shape of a family: sequences end to end, each from a state of its own.
struct Drawn {
  std::string name;
  Dims dims;  // T: of all sequences
  std::vector<int64_t> lengths;
  Inputs inputs;
  std::vector<Array> states;
  bool repeated = false;
};

Drawn draw(const FamilyReference& family, Dims dims, const std::string& name, Style style,
           std::vector<int64_t> lengths) {
  dims.T = 0;
  for (const int64_t T : lengths) dims.T += T;
  Drawn d{name,
          dims,
          std::move(lengths),
          make_inputs(family, dims, style, kSeed),
          {},
          style == Style::repeated || style == Style::equal_keys};
  for (size_t n = 0; n < d.lengths.size(); ++n) d.states.push_back(make_state(family, dims, kSeed + n));
  return d;
}

// All of them, or those that depend on the shape.
std::vector<Drawn> workloads(const FamilyReference& family, const Dims& dims, bool all_of_them) {
  std::vector<Drawn> all;
  all.push_back(draw(family, dims, "random", Style::random, {kTokens}));
  all.push_back(draw(family, dims, "lengths", Style::random, {1, 33, 63, 65, 127}));
  if (!all_of_them) return all;
  for (const Style style : reference::kStyles)
    if (style != Style::random) all.push_back(draw(family, dims, std::string(name_of(style)), style, {kTokens}));
  all.push_back(draw(family, dims, "empty", Style::random, {0, 65, 0, 65, 0}));
  Drawn large = draw(family, dims, "large_state", Style::no_decay, {8});
  for (const char* name : {"q", "k"})
    std::fill(large.inputs.at(name).data.begin(), large.inputs.at(name).data.end(), 0);
  large.states[0].data[0] = 65536;
  all.push_back(std::move(large));
  all.push_back(draw(family, dims, "long", Style::slow, {600}));
  return all;
}

// Each input as its dtype holds it.
void round_inputs(const FamilyReference& family, Drawn& d) {
  for (const InputSpec& spec : family.inputs(d.dims)) {
    Array& x = d.inputs.at(spec.name);
    x = rounded(std::move(x), is_gate(spec.role) ? kGates : kOperands);
  }
  for (Array& S : d.states) S = rounded(std::move(S), kGates);
}

struct Answer {
  Array o, S;                   // [T, Hv, dv], [N, Hv, dk, dv]
  std::vector<double> o_floor;  // [Hv]
};

double square(const double* x, int64_t n) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += x[i] * x[i];
  return sum;
}

// The definition, with the size that products of such q and S have (Layer::output_floors).
Answer answer(const FamilyReference& family, const Drawn& d, const Inputs& inputs, std::vector<Array> states) {
  const int64_t Hv = d.dims.Hv, dk = d.dims.dk, dv = d.dims.dv, N = static_cast<int64_t>(d.lengths.size());
  Answer a{Array({d.dims.T, Hv, dv}), Array({N, Hv, dk, dv}), std::vector<double>(Hv)};
  const Array& q = inputs.at("q");
  for (int64_t n = 0, t = 0; n < N; ++n) {
    for (const int64_t end = t + d.lengths[n]; t < end; ++t) {
      family.run(inputs, t, t + 1, states[n], a.o);
      for (int64_t h = 0; h < Hv; ++h)
        a.o_floor[h] += square(&q.data[(t * d.dims.Hk + h / (Hv / d.dims.Hk)) * dk], dk) *
                        square(&states[n].data[h * dk * dv], dk * dv);
    }
    std::copy(states[n].data.begin(), states[n].data.end(), a.S.data.begin() + n * Hv * dk * dv);
  }
  for (double& floor : a.o_floor) floor = std::sqrt(floor) / static_cast<double>(dk);  // scale / √dk
  return a;
}

// A state a group: each head of each sequence.
Array by_head(Array S) {
  S.shape = {S[0] * S[1], S[2], S[3]};
  return S;
}

class File {
 public:
  void add(const std::string& name, const Array& values, DType dtype) {
    bytes_.push_back(bytes_of(values, dtype));
    bytes_.back().reserve(1);  // an empty tensor has an address too
    tensors_.emplace_back(name, Tensor(bytes_.back().data(), dtype, values.shape));
  }
  void write(const fs::path& path) const {
    std::error_code error;
    fs::create_directories(path.parent_path(), error);
    require(!error, path.parent_path().string(), ": cannot make the folder: ", error.message());
    write_safetensors(path, tensors_);
  }

 private:
  std::vector<std::vector<std::byte>> bytes_;
  std::vector<std::pair<std::string, Tensor>> tensors_;
};

Array vector_of(const std::vector<double>& x) {
  Array out({static_cast<int64_t>(x.size())});
  out.data = x;
  return out;
}

void write_answer(const FamilyReference& family, const Drawn& d, const fs::path& path) {
  const Answer want = answer(family, d, d.inputs, d.states);
  // What the answer moves when every input is rounded once in float32: results that are ill-conditioned.
  Draw draw(97);
  const double eps = unit_roundoff(kGates);
  std::vector<Array> states = d.states;
  for (Array& S : states)
    for (double& x : S.data) x *= 1 + (draw.integer(0, 1) ? eps : -eps);
  const Answer moved = answer(family, d, moved_once(family, d.dims, d.inputs, eps, draw), std::move(states));
  File file;
  file.add("o", want.o, DType::f64);
  file.add("S", want.S, DType::f64);
  file.add("o.floor", vector_of(want.o_floor), DType::f64);
  file.add("o.moved", vector_of(group_errors(moved.o, want.o, 1, want.o_floor)), DType::f64);
  file.add("S.moved", vector_of(group_errors(by_head(moved.S), by_head(want.S), 0)), DType::f64);
  file.add("repeated", vector_of({d.repeated ? 1.0 : 0.0}), DType::f64);
  file.write(path);
}

// Axes of a definition.
class Definition {
 public:
  Definition(const FamilyReference& family, const Dims& dims)
      : name_(str(family.traits().name, "_hk", dims.Hk, "_hv", dims.Hv, "_k", dims.dk, "_v", dims.dv)) {
    json_ = {{"name", name_},
             {"op_type", kOp},
             {"description", str(family.traits().name,
                                 " over sequences end to end, each from a state of its own; the "
                                 "definition is reference/families/",
                                 family.traits().name, ".cc of hypic")},
             {"tags", {str("family:", family.traits().name), "hypic"}},
             {"axes",
              {{"T", {{"type", "var"}, {"description", "tokens of all sequences"}}},
               {"N", {{"type", "var"}, {"description", "sequences"}}},
               {"bounds", {{"type", "var"}, {"description", "N + 1"}}}}},
             {"inputs", ordered_json::object()},
             {"outputs", ordered_json::object()}};
    for (const InputSpec& spec : family.inputs(kSymbols))
      tensor("inputs", spec.name, spec.shape, is_gate(spec.role) ? "float32" : "bfloat16", dims);
    state("inputs", "S0");
    json_["inputs"]["cu_seqlens"] = {{"shape", {"bounds"}}, {"dtype", "int32"}};
    json_["outputs"]["o"] = {{"shape", {"T", "Hv", "dv"}}, {"dtype", "bfloat16"}};
    state("outputs", "S");
    json_["constraints"] = {"bounds == N + 1"};
    json_["reference"] = python_of(family);
  }
  const std::string& name() const { return name_; }
  std::string text() const { return json_.dump(2) + "\n"; }
  const ordered_json& inputs() const { return json_["inputs"]; }

 private:
  void tensor(const char* kind, const std::string& name, const std::vector<int64_t>& symbols, const char* dtype,
              const Dims& dims) {
    ordered_json shape = ordered_json::array();
    for (const int64_t symbol : symbols) {
      const Axis& axis = axis_of(symbol);
      shape.push_back(axis.name);
      if (symbol != kSymbols.T) json_["axes"][axis.name] = {{"type", "const"}, {"value", dims.*axis.size}};
    }
    json_[kind][name] = {{"shape", shape}, {"dtype", dtype}};
  }
  void state(const char* kind, const char* name) {
    json_[kind][name] = {{"shape", {"N", "Hv", "dk", "dv"}}, {"dtype", "float32"}};
  }
  const std::string name_;
  ordered_json json_;
};

void write_inputs(const FamilyReference& family, const Drawn& d, const fs::path& path) {
  File file;
  for (const InputSpec& spec : family.inputs(d.dims))
    file.add(spec.name, d.inputs.at(spec.name), is_gate(spec.role) ? kGates : kOperands);
  Array S0({static_cast<int64_t>(d.states.size()), d.dims.Hv, d.dims.dk, d.dims.dv});
  auto to = S0.data.begin();
  std::vector<double> bounds = {0};
  for (size_t n = 0; n < d.states.size(); ++n) {
    to = std::copy(d.states[n].data.begin(), d.states[n].data.end(), to);
    bounds.push_back(bounds.back() + static_cast<double>(d.lengths[n]));
  }
  file.add("S0", S0, kGates);
  file.add("cu_seqlens", vector_of(bounds), DType::i32);
  file.write(path);
}

void write_family(const fs::path& folder, const FamilyReference& family, const Dims& dims, bool all_of_them) {
  const Definition definition(family, dims);
  const std::string& name = definition.name();
  for (const char* kind : {"definitions", "workloads"}) {
    std::error_code error;
    fs::create_directories(folder / kind / kOp, error);
    require(!error, (folder / kind / kOp).string(), ": cannot make the folder: ", error.message());
  }
  write_file_atomically(folder / "definitions" / kOp / (name + ".json"), definition.text());
  std::string lines;
  for (Drawn& d : workloads(family, dims, all_of_them)) {
    round_inputs(family, d);
    const std::string inputs = str("blob/workloads/", name, "/", d.name, ".safetensors");
    write_inputs(family, d, folder / inputs);
    write_answer(family, d, folder / "blob/expected" / name / (d.name + ".safetensors"));
    ordered_json files;
    for (const auto& [input, _] : definition.inputs().items())
      files[input] = {{"type", "safetensors"}, {"path", inputs}, {"tensor_key", input}};
    const int64_t N = static_cast<int64_t>(d.lengths.size());
    lines +=
        ordered_json{{"definition", name},
                     {"workload",
                      {{"uuid", d.name}, {"axes", {{"T", d.dims.T}, {"N", N}, {"bounds", N + 1}}}, {"inputs", files}}},
                     {"solution", nullptr},
                     {"evaluation", nullptr}}
            .dump() +
        "\n";
  }
  write_file_atomically(folder / "workloads" / kOp / (name + ".jsonl"), lines);
}

// Whether it can be a part of a path that stays where it is.
bool is_file_name(const std::string& text) {
  return !text.empty() && text.size() <= 200 && text[0] != '.' &&
         std::all_of(text.begin(), text.end(),
                     [](unsigned char c) { return (std::isalnum(c) && c < 128) || c == '_' || c == '-' || c == '.'; });
}

const Tensor& tensor_of(const Safetensors& file, const std::string& name) {
  const auto found = file.tensors().find(name);
  require(found != file.tensors().end(), file.path(), ": lacks the tensor ", name);
  const DType dtype = found->second.dtype;
  require(dtype == DType::f64 || dtype == DType::f32 || dtype == DType::bf16 || dtype == DType::f16, file.path(), ": ",
          name, " is ", name_of(dtype), ", expected a floating dtype");
  return found->second;
}

DType dtype_named(const std::string& text) {
  for (const DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16})
    if (text == name_of(dtype)) return dtype;
  fail("compute: must be float64, float32, float16 or bfloat16, is \"", text, "\"");
}

}  // namespace

std::vector<std::string> families() {
  std::vector<std::string> names;
  for (const FamilyTraits& traits : kFamilies)
    if (!step_of(traits.family).empty()) names.emplace_back(traits.name);
  return names;
}

void write(const std::string& folder, const std::vector<std::string>& chosen) {
  std::string known;
  for (const std::string& name : families()) known += (known.empty() ? "" : ", ") + name;
  for (const std::string& name : chosen.empty() ? families() : chosen)
    require(!step_of(family_named(name).family).empty(), name, ": is not exported; exported are ", known);
  for (const std::string& name : chosen.empty() ? families() : chosen) {
    const auto family = reference::make_family(family_named(name).family);
    write_family(folder, *family, family->fit({0, 2, 2, 64, 64}), true);
    for (const Dims& dims : {Dims{0, 1, 2, 64, 64}, Dims{0, 1, 1, 64, 128}, Dims{0, 1, 1, 128, 128}})
      write_family(folder, *family, family->fit(dims), false);
  }
}

Workload parse_workload(std::string_view line, const std::string& name, const std::string& where) {
  const nlohmann::json json = parse_json(line, where, {.depth = 8, .keys = 256, .name_line = false});
  const auto text = [&](const nlohmann::json& object, const char* key) {
    require(object.is_object() && object.contains(key) && object[key].is_string(), where, ": \"", key,
            "\" must be text");
    return object[key].get<std::string>();
  };
  require(json.is_object() && json.contains("workload"), where, ": no workload");
  Workload workload{text(json, "definition"), text(json["workload"], "uuid")};
  require(workload.definition == name, where, ": is a workload of ", shown(json["definition"]), ", not of ", name);
  require(is_file_name(workload.uuid), where, ": uuid ", shown(json["workload"]["uuid"]), " is no plain file name");
  return workload;
}

std::vector<Workload> read_workloads(const std::string& folder) {
  const fs::path lists = fs::path(folder) / "workloads" / kOp;
  std::error_code error;
  require(fs::is_directory(lists, error), lists.string(), ": no such folder; hypic golden export makes one");
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(lists))
    if (entry.path().extension() == ".jsonl") files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  std::vector<Workload> all;
  for (const fs::path& path : files) {
    const std::string name = path.stem(), text = read_file(path, kMaxWorkloads);
    require(is_file_name(name), path.string(), ": its name is no plain file name");
    int64_t number = 0;
    for (size_t begin = 0, end; begin < text.size(); begin = end + 1) {
      end = std::min(text.find('\n', begin), text.size());
      ++number;
      if (end > begin)
        all.push_back(
            parse_workload(std::string_view(text).substr(begin, end - begin), name, str(path.string(), ":", number)));
    }
  }
  require(!all.empty(), lists.string(), ": holds no workload");
  return all;
}

Verdict check(const std::string& folder, const std::string& outputs, const Workload& workload,
              const std::string& compute) {
  const std::string file = workload.uuid + ".safetensors";
  const fs::path path = fs::path(outputs) / workload.definition / file;
  std::error_code error;
  if (!fs::exists(path, error)) return {};
  const Safetensors got(path), want(fs::path(folder) / "blob/expected" / workload.definition / file);
  DType dtype = DType::f64;
  for (const char* name : {"o", "S"}) {
    const Tensor &mine = tensor_of(got, name), &right = tensor_of(want, name);
    require(mine.shape_string() == right.shape_string(), path.string(), ": ", name, " has shape ", mine.shape_string(),
            ", expected ", right.shape_string());
    if (unit_roundoff(mine.dtype) > unit_roundoff(dtype)) dtype = mine.dtype;
  }
  if (!compute.empty()) dtype = dtype_named(compute);
  const auto numbers = [&](const char* name, int64_t count) {
    std::vector<double> x = to_array(tensor_of(want, name)).data;
    require(static_cast<int64_t>(x.size()) == count, want.path(), ": ", name, " has ", x.size(), " numbers, expected ",
            count);
    return x;
  };
  const double allowed = tolerance(dtype, numbers("repeated", 1)[0] != 0);
  const double rounding = dtype == DType::f64 ? unit_roundoff(DType::f64) / unit_roundoff(kGates) : 1;
  const auto bounds = [&](std::vector<double> moved) {
    for (double& x : moved) x = std::isfinite(x) ? std::max(allowed, kRoundings * rounding * x) : allowed;
    return moved;
  };
  const auto floors = [&](const std::vector<double>& bound, std::vector<double> floor) {
    for (size_t i = 0; i < bound.size(); ++i) floor[i] = std::max(floor[i], smallest_normal(dtype) / bound[i]);
    return floor;
  };
  const Array o = to_array(tensor_of(got, "o")), S = to_array(tensor_of(got, "S")),
              right_o = to_array(tensor_of(want, "o")), right_S = to_array(tensor_of(want, "S"));
  require(right_o.shape.size() == 3 && right_S.shape.size() == 4, want.path(), ": o must have 3 axes, S 4");
  const int64_t Hv = right_o[1], states = right_S[0] * right_S[1];
  const std::vector<double> o_bounds = bounds(numbers("o.moved", Hv)), S_bounds = bounds(numbers("S.moved", states));
  return {true, compare(o, right_o, 1, o_bounds, floors(o_bounds, numbers("o.floor", Hv))),
          compare(by_head(S), by_head(right_S), 0, S_bounds, floors(S_bounds, std::vector<double>(states)))};
}

}  // namespace hypic::golden
