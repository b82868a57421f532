#include "harness/measure/reference_logits.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <memory>
#include <optional>

#include "core/check.h"
#include "core/safetensors.h"
#include "harness/backends.h"
#include "harness/measure/distance.h"
#include "harness/measure/routes.h"
#include "harness/measure/tolerance.h"
#include "serving/engine.h"

namespace hypic {

namespace {

constexpr int64_t kMaxTokens = 1 << 22;
constexpr int64_t kMostInFloat64 = 100'000'000;  // parameters

bool is_narrow(const Backend& backend) {
  return unit_roundoff(backend.compute_dtype()) > unit_roundoff(DType::f32);
}

}  // namespace

ReferenceLogits load_reference_logits(const std::string& path) {
  const Safetensors file(path);
  ReferenceLogits reference;
  reference.path = path;
  const auto tokens = file.tensors().find("tokens");
  require(tokens != file.tensors().end(), path, ": no tensor tokens [n]");
  require(tokens->second.rank == 1, path, ": tokens has shape ", tokens->second.shape_string(), ", [n] is asked for");
  const Tensor& t = tokens->second;
  require(t.dtype == DType::i32 || t.dtype == DType::i64, path, ": tokens must be int32 or int64");
  require(t[0] <= kMaxTokens, path, ": ", t[0], " tokens, at most ", kMaxTokens);
  for (int64_t i = 0; i < t[0]; ++i) {
    const char* at = static_cast<const char*>(t.data) + i * size_of(t.dtype);  // perhaps unaligned
    int32_t narrow = 0;
    int64_t token = 0;
    std::memcpy(&narrow, at, sizeof(narrow));
    std::memcpy(&token, at, size_of(t.dtype));
    if (t.dtype == DType::i32) token = narrow;
    require(0 <= token && token <= INT32_MAX, path, ": token ", token, " at ", i, " is no token id");
    reference.tokens.push_back(static_cast<int32_t>(token));
  }
  for (const auto& [name, tensor] : file.tensors()) {
    if (name == "tokens") continue;
    const size_t number = name.rfind('.') + 1;  // 0 where there is no dot
    int64_t length = 0;
    const char* end = name.data() + name.size();
    const auto [stop, error] = std::from_chars(name.data() + number, end, length);
    require(number > 0 && error == std::errc{} && stop == end && 1 <= length && length <= t[0], path, ": tensor ",
            name, " must be named KIND.N, logits after the first N of the ", t[0], " tokens");
    require(tensor.rank == 1 && tensor.dtype == DType::f32, path, ": tensor ", name, " is ",
            name_of(tensor.dtype), " ", tensor.shape_string(), ", float32 [vocabulary] is asked for");
    std::vector<float> values(tensor[0]);
    std::memcpy(values.data(), tensor.data, tensor.bytes());
    reference.entries.push_back({name, length, {values.begin(), values.end()}});
  }
  const auto of_bfloat16 = [](const ReferenceLogits::Entry& e) { return e.name.starts_with("bfloat16."); };
  for (const ReferenceLogits::Entry& narrow : reference.entries) {
    if (!of_bfloat16(narrow)) continue;
    const auto wide = std::find_if(reference.entries.begin(), reference.entries.end(), [&](const auto& e) {
      return e.name == str("logits.", narrow.length);
    });
    require(wide != reference.entries.end() && wide->logits.size() == narrow.logits.size(), path, ": ", narrow.name,
            " has no logits.", narrow.length, " beside it");
    reference.bfloat16_noise = worse(reference.bfloat16_noise, largest_difference(narrow.logits, wide->logits));
  }
  std::erase_if(reference.entries, of_bfloat16);
  require(!reference.entries.empty(), path, ": holds no logits.N");
  return reference;
}

bool can_judge(const Backend& backend, const ReferenceLogits& reference) {
  return !is_narrow(backend) || reference.bfloat16_noise > 0;
}

std::vector<LogitDifference> compare_logits(const Model& model, const std::string& model_name,
                                            const ReferenceLogits& reference,
                                            const std::function<void(double)>& progress) {
  const bool narrow = is_narrow(model.backend());
  EngineOptions options;
  const int32_t page_size = options.pools.page_size;
  options.pools = {.state_slots = 2,
                   .operator_slots = 1,
                   .pages = static_cast<int64_t>(reference.tokens.size()) / page_size + 2,
                   .page_size = page_size};
  Engine engine(model, options);
  std::unique_ptr<Backend> float64;
  std::optional<Model> truth;
  std::optional<Engine> truth_engine;
  const bool may_reroute = narrow && model.spec().moe.experts > 0 && parameter_count(model.spec()) <= kMostInFloat64;
  const auto routes_of = [&](Engine& engine, Backend& backend, const Tokens& prompt) {
    Routes routes(backend);
    engine.run({{{prompt}, 1}}, mode_named("full"), {.tap = &routes});
    return std::move(routes.seen);
  };
  // Where scores nearly tie, rounding may send a row to other experts, and what it then does to logits is not bounded.
  const auto rerouted = [&](const Tokens& prompt) {
    if (!truth) {
      float64 = make_backend("cpu64");
      truth.emplace(Model::open(*float64, model_name));
      truth_engine.emplace(*truth, options);
    }
    return routes_of(engine, model.backend(), prompt) != routes_of(*truth_engine, *float64, prompt);
  };
  std::vector<LogitDifference> all;
  for (const auto& [name, length, expected] : reference.entries) {
    progress(static_cast<double>(all.size()) / static_cast<double>(reference.entries.size()));
    require(static_cast<int64_t>(expected.size()) == model.spec().vocabulary, reference.path, ": ", name, " has ",
            expected.size(), " logits, the model's vocabulary is ", model.spec().vocabulary);
    const Tokens prompt(reference.tokens.begin(), reference.tokens.begin() + length);
    const std::vector<double> logits = engine.run({{{prompt}, 1}}, mode_named("full")).responses[0].logits;
    LogitDifference& d = all.emplace_back();
    d.name = name;
    d.length = length;
    d.difference = largest_difference(logits, expected);
    d.rms = rms(expected);
    d.bound = narrow ? 2 * reference.bfloat16_noise : logit_tolerance(model.backend(), model.spec(), d.rms);
    d.kl = kl_divergence(expected, logits);
    d.same_top1 = argmax(expected) == argmax(logits);
    d.rerouted = may_reroute && std::isfinite(d.difference) && d.difference > d.bound && rerouted(prompt);
  }
  return all;
}

}  // namespace hypic
