#include "models/tensor_parallel.h"

#include <numeric>
#include <utility>

#include "core/check.h"

namespace hypic {
namespace {

using Range = std::pair<int64_t, int64_t>;

// Whether each rank has whole heads, or, where there are fewer than ranks, several ranks the same one.
bool shares(int heads, int ranks) { return heads % ranks == 0 || ranks % heads == 0; }

int share_of(int heads, int ranks) { return heads % ranks == 0 ? heads / ranks : 1; }

// Of `rows` rows of `heads` heads, those of this rank.
Range share(int64_t rows, int64_t heads, const ModelSpec& part) {
  const int64_t width = rows / heads;
  if (heads % part.ranks == 0) {
    const int64_t own = heads / part.ranks;
    return {part.rank * own * width, (part.rank + 1) * own * width};
  }
  const int64_t head = part.rank * heads / part.ranks;
  return {head * width, (head + 1) * width};
}

// What a rank has of `count` that have nothing to do with heads.
Range share(int64_t count, const ModelSpec& part) { return share(count, count, part); }

}  // namespace

ModelSpec part_of(const ModelSpec& whole, int rank, int ranks) {
  HYPIC_CHECK(!whole.whole && 0 <= rank && rank < ranks, rank, " of ", ranks);
  if (ranks == 1) return whole;
  const auto divided = [&](int& count, const char* what) {
    require(count % ranks == 0, whole.name, ": ", ranks, " ranks cannot share ", count, " ", what,
            ": not a multiple; choose another number for --tensor-parallel");
    count /= ranks;
  };
  const auto shared = [&](int& heads, const char* what) {
    require(shares(heads, ranks), whole.name, ": ", ranks, " ranks cannot share ", heads, " ", what,
            ": neither number is a multiple of the other; choose another number for --tensor-parallel");
    heads = share_of(heads, ranks);
  };
  ModelSpec part = whole;
  part.whole = std::make_shared<ModelSpec>(whole);
  part.rank = rank;
  part.ranks = ranks;
  if (whole.linear_layers() > 0) {
    LinearSpec& a = part.linear;
    divided(a.value_heads, "value heads of linear attention");
    shared(a.key_heads, "key heads of linear attention");
    a.norm_spans_ranks = a.norm_groups > 0 && a.norm_groups % ranks != 0;
    if (a.norm_groups > 0 && !a.norm_spans_ranks) a.norm_groups /= ranks;
  }
  if (whole.attention_layers() > 0) {
    AttentionSpec& a = part.attention;
    divided(a.q_heads, "query heads");
    a.latent() ? divided(a.kv_heads, "heads") : shared(a.kv_heads, "KV heads");
  }
  bool dense = false, sparse = false;
  for (const Layer& layer : whole.layers) {
    dense |= layer.ffn == Ffn::dense;
    sparse |= layer.ffn == Ffn::moe;
  }
  if (dense) divided(part.ffn.inner, "inner channels of the feed-forward part");
  if (sparse) divided(part.moe.inner, "inner channels of an expert");
  if (sparse && part.moe.shared_inner > 0) divided(part.moe.shared_inner, "inner channels of the shared expert");
  if (!whole.slopes.empty()) {
    const auto heads = static_cast<int64_t>(whole.linear.value_heads);
    const auto [begin, end] = share(heads, part);
    part.slopes.clear();
    for (int l = 0; l < whole.layer_count(); ++l)
      for (int64_t h = begin; h < end; ++h) part.slopes.push_back(whole.slopes[l * heads + h]);
  }
  return part;
}

void cut(TensorSpec& tensor, const ModelSpec& part) {
  const ModelSpec& whole = *part.whole;
  std::vector<int64_t>& shape = tensor.shape;
  Cut& cut = tensor.cut;
  switch (tensor.split) {
    case Split::none:
      return;
    case Split::rows:
      cut.ranges = {share(shape[0], part)};
      break;
    case Split::columns:
      cut.axis = static_cast<int>(shape.size()) - 1;
      cut.ranges = {share(shape.back(), part)};
      break;
    case Split::norm_groups:
      if (shape[0] % part.ranks != 0) return;
      cut.ranges = {share(shape[0], part)};
      break;
    case Split::kv_rows:
      cut.ranges = {share(shape[0], whole.attention.kv_heads, part)};
      break;
    case Split::qkv_rows: {
      const LinearSpec& a = whole.linear;
      const int64_t keys = int64_t{a.key_heads} * a.key_dim, values = int64_t{a.value_heads} * a.value_dim;
      const auto [begin, end] = share(keys, a.key_heads, part);
      const auto [first, last] = share(values, a.value_heads, part);
      cut.ranges = {{begin, end}, {keys + begin, keys + end}, {2 * keys + first, 2 * keys + last}};
      break;
    }
    case Split::expert_rows: {
      const int64_t inner = whole.moe.inner;
      const auto [begin, end] = share(inner, part);
      cut.axis = 1;
      for (int64_t at = 0; at < shape[1]; at += inner) cut.ranges.emplace_back(at + begin, at + end);
      break;
    }
  }
  shape[cut.axis] = 0;
  for (const auto& [begin, end] : cut.ranges) shape[cut.axis] += end - begin;
}

void for_each_piece(const std::vector<int64_t>& whole, const Cut& cut,
                    const std::function<void(const CutPiece&)>& use) {
  const auto product = [](auto begin, auto end) {
    return std::accumulate(begin, end, int64_t{1}, std::multiplies<int64_t>());
  };
  const int64_t size = product(whole.begin(), whole.end());
  if (cut.ranges.empty()) return use({0, 1, size, size});
  const auto axis = whole.begin() + cut.axis;
  const int64_t outer = product(whole.begin(), axis), inner = product(axis + 1, whole.end()), stride = *axis * inner;
  if (cut.ranges.size() == 1) {
    const auto [begin, end] = cut.ranges[0];
    return use({begin * inner, outer, (end - begin) * inner, stride});
  }
  for (int64_t i = 0; i < outer; ++i)
    for (const auto& [begin, end] : cut.ranges)
      use({i * stride + begin * inner, 1, (end - begin) * inner, (end - begin) * inner});
}

}  // namespace hypic
