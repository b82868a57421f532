#include "harness/cases/captured.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>

#include "core/check.h"
#include "core/safetensors.h"
#include "harness/cases/axes.h"
#include "harness/cases/family_case.h"
#include "harness/cases/layer.h"

namespace hypic::conformance {
namespace {

using reference::InputSpec;
using reference::Role;

std::string named_shape(const InputSpec& spec) {
  std::string text;
  for (const int64_t symbol : spec.shape)
    text += str(text.empty() ? "" : ", ", axis_of(symbol).name);
  return str(spec.name, " [", text, "]");
}

struct Captured {
  Dims dims;
  Inputs inputs;
  Array S0;
  Array o, S;                // of another implementation
  DType dtype = DType::f64;  // of o and S, the coarser
};

// Reads the tensors of one file for one family.
class Reader {
 public:
  Reader(const std::string& path, const FamilyReference& family)
      : path_(path), family_(family), file_(path) {}

  Captured read() {
    Captured c;
    for (const InputSpec& spec : family_.inputs(kSymbols)) {
      if (spec.role == Role::position && !file_.tensors().contains(spec.name)) continue;
      c.inputs[spec.name] = tensor(spec.name, named_shape(spec));
      bind(spec, c.inputs[spec.name], c.dims);
    }
    require(c.dims.T > 0, path_, ": holds no token");
    require(c.dims.Hk > 0 && c.dims.dk > 0 && c.dims.dv > 0 && c.dims.Hv % c.dims.Hk == 0, path_,
            ": ", c.dims.Hv, " value heads are no multiple of ", c.dims.Hk, " key heads");
    for (const InputSpec& spec : family_.inputs(c.dims))
      if (!c.inputs.contains(spec.name)) c.inputs[spec.name] = Array(spec.shape);
    const std::vector<int64_t> state = family_.state_shape(c.dims);
    c.S0 = optional("S0", state);
    c.o = optional("o", {c.dims.T, c.dims.Hv, c.dims.dv});
    c.S = optional("S", state);
    for (const char* name : {"o", "S"})
      if (const auto t = file_.tensors().find(name); t != file_.tensors().end())
        if (unit_roundoff(t->second.dtype) > unit_roundoff(c.dtype)) c.dtype = t->second.dtype;
    if (!c.S0) c.S0 = Array(state);
    for (const auto& [name, tensor] : file_.tensors())
      require(known_.contains(name), path_, ": unknown tensor \"", name, "\"; ",
              family_.traits().name, " takes ", captured_inputs(family_.traits()),
              ", and optionally S0, o, S");
    return c;
  }

 private:
  Array tensor(const std::string& name, const std::string& shape) {
    const auto found = file_.tensors().find(name);
    require(found != file_.tensors().end(), path_, ": lacks the tensor ", shape, " of ",
            family_.traits().name);
    known_[name] = true;
    const DType dtype = found->second.dtype;
    require(
        dtype == DType::f64 || dtype == DType::f32 || dtype == DType::bf16 || dtype == DType::f16,
        path_, ": ", name, " is ", name_of(dtype), ", expected a floating dtype");
    Array x = to_array(found->second);
    for (size_t i = 0; i < x.data.size(); ++i)
      require(std::isfinite(x.data[i]), path_, ": ", name, " holds ", x.data[i], " at ",
              coordinate(x, static_cast<int64_t>(i)));
    return x;
  }
  Array optional(const std::string& name, const std::vector<int64_t>& shape) {
    if (!file_.tensors().contains(name)) return {};
    Array x = tensor(name, name);
    require(x.shape == shape, path_, ": ", name, " has shape ",
            file_.tensors().at(name).shape_string(), ", expected ", shape.size(), " axes of ",
            shape_text(shape));
    return x;
  }
  static std::string shape_text(const std::vector<int64_t>& shape) {
    std::string text;
    for (const int64_t n : shape) text += str(text.empty() ? "" : " × ", n);
    return text;
  }
  void bind(const InputSpec& spec, const Array& x, Dims& dims) {
    require(x.shape.size() == spec.shape.size(), path_, ": ", spec.name, " has shape ",
            file_.tensors().at(spec.name).shape_string(), ", expected ", named_shape(spec));
    for (size_t i = 0; i < x.shape.size(); ++i) {
      const Axis& axis = axis_of(spec.shape[i]);
      auto [first, fresh] = from_.emplace(axis.name, spec.name);
      if (fresh) dims.*axis.size = x.shape[i];
      require(dims.*axis.size == x.shape[i], path_, ": ", axis.name, " is ", x.shape[i], " in ",
              spec.name, ", ", dims.*axis.size, " in ", first->second);
    }
  }

  const std::string path_;
  const FamilyReference& family_;
  const Safetensors file_;
  std::map<std::string, bool> known_;
  std::map<std::string, std::string> from_;  // axis → the tensor that gave its size
};

void run(Context& c, const FamilyReference& family, const Captured& captured) {
  const Dims& dims = captured.dims;
  Layer whole(c, family, dims, captured.inputs, {.operators = 1});
  whole.set_state(0, captured.S0);
  whole.run(Plan().chain(0).step(dims.T, 0));
  whole.check("captured");
  Layer halves(c, family, dims, captured.inputs, {.operators = 1});
  halves.set_state(0, captured.S0);
  halves.run(Plan().chain(0).step(dims.T / 2, 0));
  halves.run(Plan().chain(0).step(dims.T - dims.T / 2, dims.T / 2 ? 0 : kNone, dims.T / 2),
             dims.T / 2);
  halves.check_same("in two forwards", whole, 0, dims.T, {{0, 0}}, {});
  const double bound = std::max(tolerance(captured.dtype), tolerance(c.compute()));
  if (captured.o) c.compare("captured o", captured.o, whole.expected_outputs(), 1, {bound});
  if (captured.S) c.compare("captured S", captured.S, whole.expected_state(0), 0, {bound});
}

}  // namespace

std::string captured_inputs(const FamilyTraits& traits) {
  std::string text;
  for (const InputSpec& spec : reference::make_family(traits.family)->inputs(kSymbols))
    text += str(text.empty() ? "" : ", ", named_shape(spec));
  return text;
}

Case captured_case(const std::string& path, const std::string& name) {
  const FamilyTraits& traits = family_named(name);
  const std::string no_cell = case_of(traits.family).no_cell;
  require(no_cell.empty(), name, ": ", no_cell);
  const std::shared_ptr<FamilyReference> family = reference::make_family(traits.family);
  const auto captured = std::make_shared<Captured>(Reader(path, *family).read());
  return {str(name, "/captured ", std::filesystem::path(path).filename().string()),
          "linear_attention", name, [=](Context& c) { run(c, *family, *captured); }};
}

}  // namespace hypic::conformance
