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

// Bytes that one segment leaves beside K, V: U, and T where it is a matrix or a vector, in float32 of every
// linear layer.
int64_t operator_bytes(const ModelSpec& spec) {
  const LinearSpec& a = spec.linear;
  const FamilyTraits& family = traits(a.family);
  int64_t T = 1;
  switch (operator_kind(family.decay, family.update)) {
    case OperatorKind::dense: T = int64_t{a.key_dim} * a.key_dim; break;
    case OperatorKind::diagonal: T = a.key_dim; break;
    case OperatorKind::elementwise: T = int64_t{a.key_dim} * a.value_dim; break;
    default: break;
  }
  return spec.linear_layers() * a.value_heads * (int64_t{a.key_dim} * a.value_dim + T) * 4;
}

// Bytes of K and V, or of the latent, in bfloat16 of one token, over all attention layers.
int64_t kv_bytes(const ModelSpec& spec) {
  const AttentionSpec& a = spec.attention;
  return int64_t{2} * spec.attention_layers() * (a.latent() ? a.key_width() : 2 * a.kv_heads * a.head_dim);
}

}  // namespace

void add_models(CLI::App& app, int&) {
  CLI::App* command = app.add_subcommand("models", "List the models that random:NAME makes");
  const auto json = std::make_shared<bool>(false);
  command->add_flag("--json", *json, "As JSON");
  command->callback([json] {
    nlohmann::ordered_json all = nlohmann::ordered_json::array();
    if (!*json)
      std::cout << std::left << std::setw(30) << "model" << std::right << std::setw(8) << "layers"
                << std::setw(8) << "linear" << std::setw(8) << "hidden" << std::setw(14)
                << "parameters" << std::setw(18) << "T, U a segment" << std::setw(14)
                << "K, V a token"
                << "\n";
    for (const std::string& name : model_names()) {
      const ModelSpec spec = spec_named(name);
      if (*json) {
        all.push_back({{"name", name},
                       {"model_type", spec.model_type},
                       {"layers", spec.layer_count()},
                       {"linear_layers", spec.linear_layers()},
                       {"attention_layers", spec.attention_layers()},
                       {"hidden", spec.hidden},
                       {"parameters", parameter_count(spec)},
                       {"operator_bytes", operator_bytes(spec)},
                       {"kv_bytes_per_token", kv_bytes(spec)},
                       {"family", traits(spec.linear.family).name}});
        continue;
      }
      std::cout << std::left << std::setw(30) << name << std::right << std::setw(8)
                << spec.layer_count() << std::setw(8) << spec.linear_layers() << std::setw(8) << spec.hidden
                << std::setw(12) << std::fixed << std::setprecision(1)
                << parameter_count(spec) / 1e6 << " M" << std::setw(14)
                << operator_bytes(spec) / 1048576.0 << " MiB" << std::setw(10)
                << kv_bytes(spec) / 1024.0 << " KiB\n";
    }
    if (*json)
      std::cout << all.dump(2) << "\n";
    else
      std::cout << "Sizes are of T, U in float32, K, V (or the latent) in bfloat16, over all layers of the kind.\n"
                << "Each NAME also has a NAME-tiny of its architecture, which runs on a CPU in seconds.\n";
  });
}

}  // namespace hypic
