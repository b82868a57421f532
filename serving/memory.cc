#include "serving/memory.h"

#include <algorithm>
#include <iomanip>

#include "core/check.h"
#include "serving/residue_format.h"

namespace hypic {
namespace {

// Bytes of one row in the buffers of a forward: models/forward.cc, class Pass.
int64_t buffers_of_a_row(const ModelSpec& spec, int64_t c, int64_t s) {
  int64_t numbers = 3 * int64_t{spec.hidden}, state_numbers = 0, indices = 2;  // residual, normed, update
  const auto any = [&](const auto& is) { return std::any_of(spec.layers.begin(), spec.layers.end(), is); };
  if (any([](const Layer& l) { return l.linear && l.attention; })) numbers += spec.hidden;
  if (any([](const Layer& l) { return l.ffn == Ffn::dense; }))
    numbers += int64_t{spec.ffn.inner} * (spec.ffn.gated ? 2 : 1);
  if (any([](const Layer& l) { return l.ffn == Ffn::moe; })) {
    const MoeSpec& m = spec.moe;
    state_numbers += m.experts + m.active;
    indices += m.active;
    if (m.shared_inner > 0) numbers += int64_t{m.shared_inner} * (m.gated ? 2 : 1) + spec.hidden + 1;
  }
  if (spec.linear_layers() > 0) {
    const LinearSpec& a = spec.linear;
    const int64_t keys = int64_t{a.key_heads} * a.key_dim, values = int64_t{a.value_heads} * a.value_dim;
    const int64_t decays = int64_t{a.value_heads} * (traits(a.family).decay == Decay::diagonal ? a.key_dim : 1);
    numbers += 2 * int64_t{a.conv_channels()} + 2 * values + 2 * keys + a.decay_rank + a.gate_rank +
               decays + a.value_heads;  // qkv, conv, z, o, q, k, alpha, beta
    state_numbers += decays + a.value_heads;
    if (a.norm_spans_ranks) numbers += spec.ranks * values;
  }
  if (spec.attention_layers() > 0) {
    const AttentionSpec& a = spec.attention;
    if (a.latent())
      numbers += int64_t{a.q_heads} * (a.head_dim + a.key_width() + a.latent_dim + a.value_dim) + a.key_width();
    else
      numbers += int64_t{a.q_heads} * a.head_dim * (a.output_gate ? 4 : 3) + 2 * int64_t{a.kv_heads} * a.head_dim;
    if (a.qk_norm == QkNorm::all_heads && spec.ranks > 1)
      numbers += (int64_t{spec.whole->attention.q_heads} + spec.whole->attention.kv_heads) * a.head_dim;
  }
  return numbers * c + state_numbers * s + indices * 4;
}

// Bytes of one row in what a kernel takes for itself, the largest of all, for one runs at a time.
int64_t scratch_of_a_row(const ModelSpec& spec, int64_t c) {
  constexpr int64_t kChunkRows = 64;  // of chunked linear attention: a row's part of a chunk's matrix
  int64_t most = 0;
  if (spec.moe.experts > 0)  // inner and outer products of each choice; its place in the order
    most = int64_t{spec.moe.active} * ((int64_t{spec.moe.inner} + spec.hidden) * c + 64);
  if (spec.linear_layers() > 0)
    most = std::max(most, int64_t{spec.linear.value_heads} * ((kChunkRows + spec.linear.key_dim) * c + 16));
  if (spec.attention_layers() > 0)  // a partial result in float32
    most = std::max<int64_t>(most, int64_t{spec.attention.q_heads} * 4 * (spec.attention.key_width() + 2));
  return most;
}

std::string shown(int64_t bytes) {
  const bool small = bytes < int64_t{1} << 30;
  return str(std::fixed, std::setprecision(small ? 2 : 1),
             static_cast<double>(bytes) / (small ? 1 << 20 : 1 << 30), small ? " MiB" : " GiB");
}

}  // namespace

MemoryNeed memory_need(const ModelSpec& spec, DType compute, DType state, const PoolSizes& pools,
                       int32_t max_rows) {
  MemoryNeed need;
  for (const TensorSpec& tensor : tensor_specs(spec))
    need.weights += tensor.size() * size_of(tensor.in_state_dtype() ? state : compute);
  const ResidueLayout layout(spec, compute, state, ResidueFormat::full);
  const ResidueBytes kv = layout.bytes(Part::kv, pools.page_size);
  need.pages = pools.pages * (kv.k + kv.v);
  need.operators = pools.operator_slots * layout.bytes(Part::op, 1).total();
  need.states = pools.state_slots * layout.bytes(Part::prefix, 1).states;
  const int64_t c = size_of(compute), s = size_of(state);
  need.rows = std::min<int64_t>(max_rows, pools.pages * pools.page_size);
  need.activations = need.rows * (buffers_of_a_row(spec, c, s) + scratch_of_a_row(spec, c)) +
                     (int64_t{spec.hidden} + spec.vocabulary) * c;
  return need;
}

void require_memory(const std::string& model, const MemoryNeed& need, int64_t available) {
  if (need.total() <= available) return;
  struct Owner {
    int64_t bytes;
    std::string name, lower;
  };
  const Owner owners[] = {
      {need.pages, "K, V pages", "pages: fewer tokens"},
      {need.operators, "operators", "operator slots: fewer cached segments"},
      {need.states, "states", "state slots: fewer running requests and saved prefixes"},
      {need.activations, str("activations of ", need.rows, " rows"), "the rows of a forward: --chunk"}};
  std::string text = "weights " + shown(need.weights);
  for (const Owner& owner : owners) text += str(" + ", owner.name, " ", shown(owner.bytes));
  const Owner& most = *std::max_element(std::begin(owners), std::end(owners),
                                        [](const Owner& a, const Owner& b) { return a.bytes < b.bytes; });
  throw OutOfMemory(str(model, ": out of memory: ", text, " = ", shown(need.total()), " of ", shown(available),
                        " available; lower ", most.lower));
}

}  // namespace hypic
