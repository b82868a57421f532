// Qwen3.5 mixture-of-experts text models.
#include "core/check.h"
#include "models/qwen3_5.h"

namespace hypic {
namespace {

ModelSpec spec_of(const Config& config) {
  ModelSpec spec = qwen_spec(config);
  read_qwen_moe(config, &spec);
  config.check(spec.moe.renormalise, "norm_topk_prob must be true: the router of this architecture renormalises");
  return spec;
}

std::vector<TensorSpec> tensors_of(const ModelSpec& spec) {
  return qwen_tensors(spec, add_qwen3_5_projections, [](TensorList& list, const ModelSpec& s, int l) {
    if (s.layers[l].ffn == Ffn::dense)
      return list.swiglu(str("layers.", l, ".ffn."), str("layers.", l, ".mlp."), s.hidden, s.ffn.inner);
    // The hub's files hold all experts as one tensor; quantised ones and those that transformers saves
    // hold one per expert and matrix.
    const int64_t E = s.moe.experts, I = s.moe.inner, H = s.hidden;
    const std::string name = str("layers.", l, ".moe."), stored = str("layers.", l, ".mlp.");
    TensorList separate;
    add_qwen_moe(separate, s, l);
    for (TensorSpec& tensor : separate.take()) {
      if (tensor.name == name + "up" || tensor.name == name + "down") {
        const bool up = tensor.name == name + "up";
        list.make(tensor.name, tensor.shape, tensor.init, tensor.split,
                  {up ? Piece{stored + "experts.gate_up_proj", {E, 2 * I, H}, {}}
                      : Piece{stored + "experts.down_proj", {E, H, I}, {}}});
        list.or_else(std::move(tensor.sources[0]));
      } else {
        list.make(tensor.name, tensor.shape, tensor.init, tensor.split, std::move(tensor.sources[0]));
      }
    }
  });
}

std::vector<NamedConfig> named() {
  struct Sparse {
    QwenSizes sizes;
    int experts, active, inner;
  };
  constexpr Sparse kSizes[] = {
      {{"qwen3.5-35b-a3b", 40, 2048, 16, 2, 256, 16, 32, 128, 128}, 256, 8, 512},
      {{"qwen3.5-122b-a10b", 48, 3072, 32, 2, 256, 16, 64, 128, 128}, 256, 8, 1024},
      {{"qwen3.5-397b-a17b", 60, 4096, 32, 2, 256, 16, 64, 128, 128}, 512, 10, 1024},
  };
  constexpr Sparse kTiny = {{"qwen3.5-35b-a3b-tiny", 8, 128, 4, 2, 32, 2, 4, 64, 32}, 16, 4, 64};
  std::vector<NamedConfig> all;
  const auto add = [&](const Sparse& s, int vocabulary) {
    nlohmann::json config = qwen_config(s.sizes, "qwen3_5_moe_text", vocabulary);
    config["num_experts"] = s.experts;
    config["num_experts_per_tok"] = s.active;
    config["moe_intermediate_size"] = config["shared_expert_intermediate_size"] = s.inner;
    all.push_back({s.sizes.name, config});
  };
  add(kTiny, 2048);
  for (const Sparse& s : kSizes) add(s, 248320);
  return all;
}

}  // namespace

const Architecture& qwen3_5_moe() {
  static const Architecture all = {{"qwen3_5_moe_text", "qwen3_5_moe"}, spec_of, tensors_of, qwen3_5().names,
                                   named};
  return all;
}

}  // namespace hypic
