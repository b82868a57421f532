#include "harness/measure/replay.h"

#include <algorithm>
#include <cmath>

#include "core/check.h"
#include "reference/ops/linear_attention.h"
#include "reference/ops/rope.h"

namespace hypic {
namespace {

// Where a run of rows comes from: a step of the last chain, or what a jump's operator was made of.
struct Part {
  int32_t begin, end;
  int32_t shift;  // by which its segment moved since it was built
  bool jump;
  Compose compose;
};

std::vector<Part> parts_in_prompt_order(const ChainTable& table) {
  const Chain& chain = table.chains.back();
  std::vector<Part> parts;
  for (int32_t i = chain.item_begin; i + 1 < chain.item_end; ++i) {
    const ChainItem& item = table.items[i];
    if (item.kind == ChainItem::Kind::step) {
      if (item.keep) parts.push_back({item.begin, item.end, 0, false, Compose::transfer});
      continue;
    }
    const auto made =
        std::find_if(table.items.begin(), table.items.end(), [&](const ChainItem& step) {
          return step.kind == ChainItem::Kind::step && step.op == item.op;
        });
    HYPIC_CHECK(made != table.items.end() && made->span == 0, "operator ", item.op,
                " was not built here");
    parts.push_back({made->begin, made->end, item.shift, true, item.compose});
  }
  return parts;
}

// One layer's recurrence over recorded rows.
class Recurrence {
 public:
  Recurrence(const ModelSpec& spec, const ChainTable& table, const InputRecorder& inputs, int layer)
      : a_(spec.linear), rows_(table.row_count()), inputs_(inputs), layer_(layer) {}

  std::vector<double> zero() const {
    return std::vector<double>(int64_t{a_.value_heads} * a_.key_dim * a_.value_dim, 0.0);
  }

  // Runs `state` through the rows of a part, its keys moved with it.
  void run(const Part& part, std::vector<double>& state) const {
    const int64_t R = part.end - part.begin;
    if (R == 0) return;
    std::map<std::string, std::vector<double>> in;
    const auto tensor = [&](const char* letter, std::initializer_list<int64_t> shape) {
      const std::vector<double>& all = inputs_.get(layer_, letter);
      if (all.empty()) return Tensor();
      const int64_t width = static_cast<int64_t>(all.size()) / rows_;
      in[letter].assign(all.begin() + part.begin * width, all.begin() + part.end * width);
      return Tensor(in[letter].data(), shape);
    };
    const FamilyTraits& family = traits(a_.family);
    const Tensor k = tensor("linear.k", {R, a_.key_heads, a_.key_dim});
    if (a_.rotary_dim > 0) {  // keys carry the positions of the chain that made them
      std::vector<int32_t> shifts(R, part.shift);
      reference::rope<double>({k, Tensor(shifts.data(), {R}), a_.rotary_dim, a_.rope_theta, k});
    }
    std::vector<double> o(R * a_.value_heads * a_.value_dim);
    ChainTable one;
    one.tokens.resize(R);
    ChainItem step;
    step.end = static_cast<int32_t>(R);
    one.items = {step};
    Chain chain;
    chain.item_end = 1;
    chain.row_end = static_cast<int32_t>(R);
    chain.state = 0;
    chain.fresh = false;
    one.chains = {chain};
    reference::linear_attention<double>(
        {.decay = family.decay,
         .update = family.update,
         .readout = family.readout,
         .scale = 1,
         .q = k,  // outputs are not looked at
         .k = k,
         .v = tensor("linear.v", {R, a_.value_heads, a_.value_dim}),
         .g = family.decay == Decay::diagonal ? tensor("linear.g", {R, a_.value_heads, a_.key_dim})
                                              : tensor("linear.g", {R, a_.value_heads}),
         .beta = tensor("linear.beta", {R, a_.value_heads}),
         .state = Tensor(state.data(), {1, a_.value_heads, a_.key_dim, a_.value_dim}),
         .side = family.side,
         .o = Tensor(o.data(), {R, a_.value_heads, a_.value_dim})},
        one);
  }

 private:
  const LinearSpec& a_;
  const int64_t rows_;
  const InputRecorder& inputs_;
  const int layer_;
};

// A key that a row sees: its row in this forward, and the distance by which the row's query is rotated for it.
struct SeenKey {
  int32_t row;
  int64_t distance;
};

std::vector<SeenKey> keys_of(const ChainTable& table, int32_t row) {
  const Chain& chain = table.chains.back();
  const int32_t position = table.positions[row];
  std::vector<SeenKey> keys;
  for (int32_t i = chain.residue_begin; i < chain.residue_end; ++i) {
    const ResidueRef& residue = table.residues[i];
    if (position < residue.start + residue.last) continue;
    const auto made = std::find_if(table.chains.begin(), table.chains.end(), [&](const Chain& other) {
      return other.row_begin < other.row_end && other.fresh &&
             table.pages[other.page_begin] == table.pages[residue.page_begin];
    });
    HYPIC_CHECK(made != table.chains.end(), "a residue was not built here");
    for (int32_t token = residue.first; token < residue.last; ++token)
      keys.push_back({made->row_begin + token, position - residue.shift});
  }
  for (int32_t own = chain.row_begin; own <= row; ++own) keys.push_back({own, position});
  return keys;
}

}  // namespace

void InputRecorder::see(const std::string& name, const Tensor& tensor) {
  // Neither pools, which are not rows, nor indices.
  if (!name.ends_with(".state") && tensor.dtype != DType::i32) seen_[name] = to_doubles(backend_, tensor);
}

const std::vector<double>& InputRecorder::get(int layer, const char* name) const {
  static const std::vector<double> none;
  const auto found = seen_.find(str("layers.", layer, ".", name));
  return found == seen_.end() ? none : found->second;
}

std::vector<double> replayed_state(const ModelSpec& spec, const ChainTable& table,
                                   const InputRecorder& inputs, int layer) {
  const Recurrence recurrence(spec, table, inputs, layer);
  std::vector<double> state = recurrence.zero();
  for (const Part& part : parts_in_prompt_order(table)) recurrence.run(part, state);
  return state;
}

std::vector<double> composed_state(const ModelSpec& spec, const ChainTable& table,
                                   const InputRecorder& inputs, int layer) {
  const Recurrence recurrence(spec, table, inputs, layer);
  std::vector<double> state = recurrence.zero();
  for (const Part& part : parts_in_prompt_order(table)) {
    if (!part.jump || part.compose == Compose::transfer) {
      recurrence.run(part, state);
      continue;
    }
    std::vector<double> alone = recurrence.zero();
    if (part.compose != Compose::zero) recurrence.run(part, alone);
    if (part.compose == Compose::add)
      for (size_t i = 0; i < state.size(); ++i) alone[i] += state[i];
    state = std::move(alone);
  }
  return state;
}

std::vector<double> replayed_attention(const ModelSpec& spec, const ChainTable& table,
                                       const InputRecorder& inputs, int layer) {
  const AttentionSpec& a = spec.attention;
  const int64_t D = a.key_width(), Dv = a.latent() ? a.latent_dim : a.head_dim, Hq = a.q_heads,
                Hkv = a.latent() ? 1 : a.kv_heads;
  const double scale = a.scale > 0 ? a.scale : 1 / std::sqrt(static_cast<double>(a.head_dim));
  const std::vector<double>&q = inputs.get(layer, "attention.q"), &k = inputs.get(layer, "attention.k"),
  &v = a.latent() ? k : inputs.get(layer, "attention.v");
  const int64_t v_width = a.latent() ? D : Dv;  // V of a latent is its first dims
  std::vector<double> out;
  const Chain& chain = table.chains.back();
  for (int32_t row = chain.row_begin; row < chain.row_end; ++row) {
    const std::vector<SeenKey> keys = keys_of(table, row);
    for (int64_t h = 0; h < Hq; ++h) {
      const int64_t kv = h / (Hq / Hkv);
      std::map<int64_t, std::vector<double>> rotated;  // by distance
      std::vector<double> scores;
      double top = -INFINITY;
      for (const SeenKey& key : keys) {
        std::vector<double>& turned = rotated[key.distance];
        if (turned.empty()) {
          turned.assign(q.begin() + (row * Hq + h) * D, q.begin() + (row * Hq + h + 1) * D);
          reference::Rotation<double>(key.distance, a.rotary_dim, a.rope_theta).rotate(turned.data(), turned.data());
        }
        double dot = 0;
        for (int64_t d = 0; d < D; ++d) dot += turned[d] * k[(key.row * Hkv + kv) * D + d];
        scores.push_back(scale * dot);
        top = std::max(top, scores.back());
      }
      std::vector<double> sum(Dv, 0.0);
      double divisor = 0;
      for (size_t i = 0; i < keys.size(); ++i) {
        const double p = std::exp(scores[i] - top);
        divisor += p;
        for (int64_t d = 0; d < Dv; ++d) sum[d] += p * v[(keys[i].row * Hkv + kv) * v_width + d];
      }
      for (const double x : sum) out.push_back(x / divisor);
    }
  }
  return out;
}

std::vector<double> last_chain_rows(const ChainTable& table, const std::vector<double>& all) {
  const Chain& chain = table.chains.back();
  const int64_t width = static_cast<int64_t>(all.size()) / std::max(table.row_count(), 1);
  return {all.begin() + chain.row_begin * width, all.begin() + chain.row_end * width};
}

}  // namespace hypic
