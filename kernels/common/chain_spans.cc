#include "kernels/common/chain_spans.h"

#include <algorithm>

namespace hypic::cuda {
namespace {

struct Cut : ChainSpan {
  bool jumps;
  int32_t rows;
};

std::vector<Cut> cuts_of(const ChainTable& table, const Chain& chain, int32_t max_rows, int32_t max_last_rows) {
  std::vector<Cut> cuts = {{{chain.item_begin, chain.item_begin, chain.state, chain.fresh}, false, 0}};
  bool open = true;  // the last may still become either kind
  for (int32_t i = chain.item_begin; i < chain.item_end; ++i) {
    const ChainItem& item = table.items[i];
    const bool is_jump = item.kind == ChainItem::Kind::jump;
    const int32_t rows = is_jump ? 0 : item.end - item.begin;
    if (is_jump || rows > (i + 1 < chain.item_end ? max_rows : max_last_rows)) {
      if (!open && cuts.back().jumps != is_jump) cuts.push_back({{i, i, chain.state, false}, is_jump, 0});
      cuts.back().jumps = is_jump;
      open = false;
    }
    cuts.back().item_end = i + 1;
    cuts.back().rows += rows;
  }
  return cuts;
}

}  // namespace

std::vector<SpanStage> cut_spans(const ChainTable& table, std::span<const int32_t> chains, int32_t max_rows,
                                 int32_t max_last_rows, std::vector<ChainSpan>& all) {
  std::vector<std::vector<Cut>> stages;
  for (const int32_t c : chains) {
    const std::vector<Cut> cuts = cuts_of(table, table.chains[c], max_rows, max_last_rows);
    if (stages.size() < cuts.size()) stages.resize(cuts.size());
    for (size_t i = 0; i < cuts.size(); ++i) stages[i].push_back(cuts[i]);
  }
  std::vector<SpanStage> result;
  for (std::vector<Cut>& cuts : stages) {
    std::stable_sort(cuts.begin(), cuts.end(),
                     [](const Cut& a, const Cut& b) { return a.jumps != b.jumps ? a.jumps : a.rows > b.rows; });
    const auto first = static_cast<int32_t>(all.size());
    const auto jumps = std::count_if(cuts.begin(), cuts.end(), [](const Cut& cut) { return cut.jumps; });
    all.insert(all.end(), cuts.begin(), cuts.end());
    result.push_back({first, first + static_cast<int32_t>(jumps), static_cast<int32_t>(all.size())});
  }
  return result;
}

}  // namespace hypic::cuda
