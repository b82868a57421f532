// Qwen3-Next: Qwen3.5's layers with the projections of a gated DeltaNet layer interleaved by key head.
#include "core/check.h"
#include "models/qwen3_5.h"

namespace hypic {
namespace {

ModelSpec spec_of(const Config& config) {
  ModelSpec spec = qwen_spec(config);
  read_qwen_moe(config, &spec);
  return spec;
}

// in_proj_qkvz holds, for each key head, the rows [q | k | v | z] of its heads, in_proj_ba [b | a].
void add_projections(TensorList& list, const ModelSpec& spec, const std::string& name,
                     const std::string& stored) {
  const LinearSpec& a = spec.linear;
  const int64_t H = spec.hidden, group = a.value_heads / a.key_heads, dk = a.key_dim,
                dv = group * a.value_dim, stride = 2 * dk + 2 * dv;
  const auto rows = [&](int64_t step, int64_t first, int64_t count) {
    std::vector<int64_t> out;
    for (int64_t head = 0; head < a.key_heads; ++head)
      for (int64_t i = 0; i < count; ++i) out.push_back(head * step + first + i);
    return out;
  };
  std::vector<int64_t> qkv = rows(stride, 0, dk);
  for (const auto& more : {rows(stride, dk, dk), rows(stride, 2 * dk, dv)})
    qkv.insert(qkv.end(), more.begin(), more.end());
  const std::string qkvz = stored + "in_proj_qkvz.weight", ba = stored + "in_proj_ba.weight";
  const std::vector<int64_t> qkvz_shape = {a.key_heads * stride, H}, ba_shape = {2 * a.value_heads, H};
  list.make(name + "qkv", {a.conv_channels(), H}, Init::matrix, Split::qkv_rows, {{qkvz, qkvz_shape, qkv}});
  list.make(name + "z", {a.value_heads * a.value_dim, H}, Init::matrix, Split::rows,
            {{qkvz, qkvz_shape, rows(stride, 2 * dk + dv, dv)}});
  list.make(name + "beta", {a.value_heads, H}, Init::matrix, Split::rows,
            {{ba, ba_shape, rows(2 * group, 0, group)}});
  list.make(name + "decay", {a.value_heads, H}, Init::gate_matrix, Split::rows,
            {{ba, ba_shape, rows(2 * group, group, group)}});
}

std::vector<TensorSpec> tensors_of(const ModelSpec& spec) {
  return qwen_tensors(spec, add_projections, [](TensorList& list, const ModelSpec& s, int l) {
    if (s.layers[l].ffn == Ffn::moe) return add_qwen_moe(list, s, l);
    list.swiglu(str("layers.", l, ".ffn."), str("layers.", l, ".mlp."), s.hidden, s.ffn.inner);
  });
}

std::vector<NamedConfig> named() {
  const auto make = [](const QwenSizes& sizes, int vocabulary, int experts, int active, int inner) {
    nlohmann::json config = qwen_config(sizes, "qwen3_next", vocabulary);
    config["num_experts"] = experts;
    config["num_experts_per_tok"] = active;
    config["moe_intermediate_size"] = config["shared_expert_intermediate_size"] = inner;
    return NamedConfig{sizes.name, config};
  };
  return {make({"qwen3-next-80b-a3b-tiny", 4, 128, 4, 2, 32, 2, 4, 64, 32}, 2048, 16, 4, 64),
          make({"qwen3-next-80b-a3b", 48, 2048, 16, 2, 256, 16, 32, 128, 128}, 151936, 512, 10, 512)};
}

}  // namespace

const Architecture& qwen3_next() {
  static const Architecture all = {{"qwen3_next"}, spec_of, tensors_of, {{"model."}, {"mtp."}}, named};
  return all;
}

}  // namespace hypic
