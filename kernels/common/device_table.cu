#include "kernels/common/device_table.cuh"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "kernels/common/cuda.cuh"

namespace hypic::cuda {
namespace {

bool is_single_row(const ChainTable& table, const Chain& chain) {
  if (chain.item_end - chain.item_begin != 1 || chain.row_end - chain.row_begin != 1) return false;
  const ChainItem& item = table.items[chain.item_begin];
  return item.keep && item.op == kNone && item.save == kNone;
}

}  // namespace

TableUpload::~TableUpload() { cudaFree(memory_); }

void TableUpload::upload(const ChainTable& table, Staging& staging, cudaStream_t stream) {
  levels_.clear();
  for (size_t c = 0; c < table.chains.size(); ++c) {
    const Chain& chain = table.chains[c];
    if (levels_.empty() || table.chains[c - 1].level != chain.level) {
      const auto at = static_cast<int32_t>(c);
      levels_.push_back({at, at, 0, 0, at, {}});
    }
    levels_.back().last = static_cast<int32_t>(c) + 1;
  }
  std::vector<OpStep> op_steps;
  std::vector<ChainSpan> spans;
  std::vector<int32_t> order(table.chains.size());
  std::iota(order.begin(), order.end(), 0);
  for (Level& level : levels_) {
    const auto first = order.begin() + level.first, last = order.begin() + level.last;
    const auto single = std::stable_partition(
        first, last, [&](int32_t c) { return !is_single_row(table, table.chains[c]); });
    std::stable_sort(first, single, [&](int32_t a, int32_t b) {
      const Chain &x = table.chains[a], &y = table.chains[b];
      return x.row_end - x.row_begin > y.row_end - y.row_begin;
    });
    level.single_first = static_cast<int32_t>(single - order.begin());
    level.stages = cut_spans(table, {first, single}, kChunkRows, kLastJumpRows, spans);
    level.op_first = static_cast<int32_t>(op_steps.size());
    for (auto c = first; c != last; ++c)
      for (int32_t i = table.chains[*c].item_begin; i < table.chains[*c].item_end; ++i)
        if (table.items[i].kind == ChainItem::Kind::step && table.items[i].op != kNone)
          op_steps.push_back({i, table.items[i].op});
    level.op_last = static_cast<int32_t>(op_steps.size());
  }
  std::vector<int32_t> item_of(table.tokens.size(), kNone);
  for (size_t i = 0; i < table.items.size(); ++i)
    if (table.items[i].kind == ChainItem::Kind::step)
      std::fill(item_of.begin() + table.items[i].begin, item_of.begin() + table.items[i].end, static_cast<int32_t>(i));
  std::vector<RowChunk> chunks;
  for (const Chain& chain : table.chains) {
    if (is_single_row(table, chain)) continue;
    for (int32_t i = chain.item_begin; i < chain.item_end; ++i)
      if (table.items[i].kind == ChainItem::Kind::step)
        for (int32_t r = table.items[i].begin; r < table.items[i].end; r += kChunkRows)
          chunks.push_back({r, std::min(r + kChunkRows, table.items[i].end)});
  }
  // One block of memory, one copy.
  std::vector<char> host;
  const auto add = [&](const auto& values) {
    const size_t at = host.size();
    host.resize((at + values.size() * sizeof(values[0]) + 15) / 16 * 16);
    if (!values.empty()) std::memcpy(host.data() + at, values.data(), values.size() * sizeof(values[0]));
    return at;
  };
  const size_t chains = add(table.chains), items = add(table.items), residues = add(table.residues),
               tokens = add(table.tokens), positions = add(table.positions), logit_rows = add(table.logit_rows),
               chain_of = add(table.chain_of), items_of = add(item_of), ops = add(op_steps), orders = add(order),
               all_spans = add(spans), row_chunks = add(chunks);
  const size_t pages = add(table.pages);  // the last: their number alone changes from one decode step to the next
  if (host.size() > bytes_) {
    check(cudaStreamSynchronize(stream), "stream");
    check(cudaFree(memory_), "free");
    memory_ = nullptr;
    bytes_ = host.size() * 2;
    check(cudaMalloc(&memory_, bytes_), "chain table");
  }
  staging.upload(memory_, host.data(), host.size());
  const auto at = [&]<class T>(const T*& field, size_t offset) {
    field = reinterpret_cast<const T*>(static_cast<const char*>(memory_) + offset);
  };
  at(device_.chains, chains);
  at(device_.items, items);
  at(device_.residues, residues);
  at(device_.pages, pages);
  at(device_.tokens, tokens);
  at(device_.positions, positions);
  at(device_.logit_rows, logit_rows);
  at(device_.chain_of, chain_of);
  at(device_.item_of, items_of);
  at(device_.op_steps, ops);
  at(device_.order, orders);
  at(device_.spans, all_spans);
  at(device_.chunks, row_chunks);
  device_.page_size = table.page_size;
  shape_ = str(memory_);
  for (const size_t size : {table.chains.size(), table.items.size(), table.residues.size(), table.tokens.size(),
                            table.logit_rows.size(), op_steps.size(), spans.size(), chunks.size()})
    shape_ += str(",", size);
  for (const Chain& chain : table.chains) shape_ += str(",", chain.row_end);
  for (const Level& level : levels_) {
    shape_ += str(";", level.last, ",", level.op_last, ",", level.single_first);
    for (const SpanStage& stage : level.stages) shape_ += str(",", stage.jumps_last, ",", stage.last);
  }
  rows_ = table.row_count();
  chunk_count_ = static_cast<int32_t>(chunks.size());
  item_count_ = static_cast<int32_t>(table.items.size());
  chains_ = table.chains;
  max_position_ = 0;
  for (const int32_t position : table.positions) max_position_ = std::max(max_position_, position);
  max_keys_ = 0;
  for (const Chain& chain : chains_) {
    int32_t keys = chain.kv_begin + chain.row_end - chain.row_begin;
    for (int32_t i = chain.residue_begin; i < chain.residue_end; ++i)
      keys += table.residues[i].last - table.residues[i].first;
    max_keys_ = std::max(max_keys_, keys);
  }
}

}  // namespace hypic::cuda
