#include "harness/measure/replay.h"

#include <algorithm>

#include "core/check.h"
#include "reference/ops/linear_attention.h"
#include "reference/ops/rope.h"

namespace hypic {
namespace {

constexpr const char* kLetters[] = {"k", "v", "g", "beta"};

struct Row {
  int32_t row;
  int32_t shift;  // by which its segment moved since it was built
};

// Rows in prompt order: steps that leave a state, and the rows that an operator was made of for
// each jump.
std::vector<Row> rows_in_prompt_order(const ChainTable& table) {
  const Chain& chain = table.chains.back();
  std::vector<Row> rows;
  const auto add = [&](const ChainItem& step, int32_t shift) {
    for (int32_t r = step.begin; r < step.end; ++r) rows.push_back({r, shift});
  };
  for (int32_t i = chain.item_begin; i + 1 < chain.item_end; ++i) {
    const ChainItem& item = table.items[i];
    if (item.kind == ChainItem::Kind::step) {
      if (item.keep) add(item, 0);
      continue;
    }
    const auto made =
        std::find_if(table.items.begin(), table.items.end(), [&](const ChainItem& step) {
          return step.kind == ChainItem::Kind::step && step.op == item.op;
        });
    HYPIC_CHECK(made != table.items.end() && made->span == 0, "operator ", item.op,
                " was not built here");
    add(*made, item.shift);
  }
  return rows;
}

}  // namespace

void InputRecorder::see(const std::string& name, const Tensor& tensor) {
  const size_t at = name.find(".linear.");
  if (at == name.npos) return;
  const std::string letter = name.substr(name.rfind('.') + 1);
  if (std::find(std::begin(kLetters), std::end(kLetters), letter) == std::end(kLetters)) return;
  std::vector<double>& out = seen_[name];
  out.clear();
  const int64_t width = tensor.size() / std::max<int64_t>(tensor[0], 1);
  for (int64_t r = 0; r < tensor[0]; ++r)
    for (int64_t i = 0; i < width; ++i)
      out.push_back(tensor.dtype == DType::f64 ? tensor.as<double>()[r * tensor.stride[0] + i]
                                               : tensor.as<float>()[r * tensor.stride[0] + i]);
}

const std::vector<double>& InputRecorder::get(int layer, const char* letter) const {
  static const std::vector<double> none;
  const auto found = seen_.find(str("layers.", layer, ".linear.", letter));
  return found == seen_.end() ? none : found->second;
}

std::vector<double> replayed_state(const ModelSpec& spec, const ChainTable& table,
                                   const InputRecorder& inputs, int layer) {
  const LinearSpec& a = spec.linear;
  const FamilyTraits& family = traits(a.family);
  const std::vector<Row> rows = rows_in_prompt_order(table);
  const int64_t R = static_cast<int64_t>(rows.size());
  std::map<std::string, std::vector<double>> in;
  for (const char* letter : kLetters) {
    const std::vector<double>& all = inputs.get(layer, letter);
    const int64_t width = static_cast<int64_t>(all.size()) / table.row_count();
    for (const Row& r : rows)
      in[letter].insert(in[letter].end(), all.begin() + r.row * width, all.begin() + (r.row + 1) * width);
  }
  const auto tensor = [&](const char* letter, std::initializer_list<int64_t> shape) {
    return in[letter].empty() ? Tensor() : Tensor(in[letter].data(), shape);
  };
  const Tensor k = tensor("k", {R, a.key_heads, a.key_dim});
  if (a.rotary_dim > 0 && R > 0) {  // keys carry the positions of the chain that made them
    std::vector<int32_t> shifts;
    for (const Row& r : rows) shifts.push_back(r.shift);
    reference::rope<double>({k, Tensor(shifts.data(), {R}), a.rotary_dim, a.rope_theta, k});
  }
  std::vector<double> state(a.value_heads * a.key_dim * a.value_dim, 0.0),
      o(R * a.value_heads * a.value_dim);
  ChainTable one;
  one.tokens.resize(R);
  ChainItem step;
  step.end = static_cast<int32_t>(R);
  one.items = {step};
  Chain chain;
  chain.item_end = 1;
  chain.row_end = static_cast<int32_t>(R);
  chain.state = 0;
  one.chains = {chain};
  reference::linear_attention<double>(
      {.decay = family.decay,
       .update = family.update,
       .readout = family.readout,
       .scale = 1,
       .q = k,  // outputs are not looked at
       .k = k,
       .v = tensor("v", {R, a.value_heads, a.value_dim}),
       .g = family.decay == Decay::diagonal ? tensor("g", {R, a.value_heads, a.key_dim})
                                            : tensor("g", {R, a.value_heads}),
       .beta = tensor("beta", {R, a.value_heads}),
       .state = Tensor(state.data(), {1, a.value_heads, a.key_dim, a.value_dim}),
       .side = family.side,
       .o = Tensor(o.data(), {R, a.value_heads, a.value_dim})},
      one);
  return state;
}

}  // namespace hypic
