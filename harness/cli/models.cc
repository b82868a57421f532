#include <CLI/CLI.hpp>
#include <algorithm>
#include <iomanip>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>

#include "harness/cli/commands.h"
#include "models/spec.h"

namespace hypic {
namespace {

// Bytes that one segment leaves beside K, V: U and T in float32 of every linear layer.
int64_t operator_bytes(const ModelSpec& spec) {
  const int64_t linear = std::count(spec.layers.begin(), spec.layers.end(), LayerKind::linear);
  const LinearSpec& a = spec.linear;
  return linear * a.value_heads * a.key_dim * (a.value_dim + a.key_dim) * 4;
}

// Bytes of K and V in bfloat16 of one token, over all attention layers.
int64_t kv_bytes(const ModelSpec& spec) {
  const int64_t attention =
      std::count(spec.layers.begin(), spec.layers.end(), LayerKind::attention);
  return attention * 2 * spec.attention.kv_heads * spec.attention.head_dim * 2;
}

}  // namespace

void add_models(CLI::App& app, int&) {
  CLI::App* command = app.add_subcommand("models", "List the models that random:NAME makes");
  const auto json = std::make_shared<bool>(false);
  command->add_flag("--json", *json, "As JSON");
  command->callback([json] {
    nlohmann::ordered_json all = nlohmann::ordered_json::array();
    if (!*json)
      std::cout << std::left << std::setw(16) << "model" << std::right << std::setw(8) << "layers"
                << std::setw(8) << "linear" << std::setw(8) << "hidden" << std::setw(14)
                << "parameters" << std::setw(18) << "T, U a segment" << std::setw(14)
                << "K, V a token"
                << "\n";
    for (const std::string& name : model_names()) {
      const ModelSpec spec = spec_named(name);
      const int64_t linear = std::count(spec.layers.begin(), spec.layers.end(), LayerKind::linear);
      if (*json) {
        all.push_back({{"name", name},
                       {"model_type", spec.model_type},
                       {"layers", spec.layer_count()},
                       {"linear_layers", linear},
                       {"hidden", spec.hidden},
                       {"parameters", parameter_count(spec)},
                       {"operator_bytes", operator_bytes(spec)},
                       {"kv_bytes_per_token", kv_bytes(spec)},
                       {"family", traits(spec.linear.family).name}});
        continue;
      }
      std::cout << std::left << std::setw(16) << name << std::right << std::setw(8)
                << spec.layer_count() << std::setw(8) << linear << std::setw(8) << spec.hidden
                << std::setw(12) << std::fixed << std::setprecision(1)
                << parameter_count(spec) / 1e6 << " M" << std::setw(14)
                << operator_bytes(spec) / 1048576.0 << " MiB" << std::setw(10)
                << kv_bytes(spec) / 1024.0 << " KiB\n";
    }
    if (*json) std::cout << all.dump(2) << "\n";
  });
}

}  // namespace hypic
