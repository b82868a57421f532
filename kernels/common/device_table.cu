#include "kernels/common/device_table.cuh"

#include <cstring>

#include "kernels/common/cuda.cuh"

namespace hypic::cuda {

TableUpload::~TableUpload() { cudaFree(memory_); }

void TableUpload::upload(const ChainTable& table, cudaStream_t stream) {
  levels_.clear();
  std::vector<OpStep> op_steps;
  for (size_t c = 0; c < table.chains.size(); ++c) {
    const Chain& chain = table.chains[c];
    if (levels_.empty() || table.chains[c - 1].level != chain.level) {
      const auto at = static_cast<int32_t>(c), op_at = static_cast<int32_t>(op_steps.size());
      levels_.push_back({at, at, op_at, op_at});
    }
    for (int32_t i = chain.item_begin; i < chain.item_end; ++i)
      if (table.items[i].kind == ChainItem::Kind::step && table.items[i].op != kNone)
        op_steps.push_back({i, table.items[i].op});
    levels_.back().last = static_cast<int32_t>(c) + 1;
    levels_.back().op_last = static_cast<int32_t>(op_steps.size());
  }
  // One block of memory, one copy; from pageable memory, so that the host's copy may go at once.
  std::vector<char> host;
  const auto add = [&](const auto& values) {
    const size_t at = host.size();
    host.resize((at + values.size() * sizeof(values[0]) + 15) / 16 * 16);
    if (!values.empty()) std::memcpy(host.data() + at, values.data(), values.size() * sizeof(values[0]));
    return at;
  };
  const size_t chains = add(table.chains), items = add(table.items), residues = add(table.residues),
               pages = add(table.pages), positions = add(table.positions), chain_of = add(table.chain_of),
               ops = add(op_steps);
  if (host.size() > bytes_) {
    check(cudaStreamSynchronize(stream), "stream");
    check(cudaFree(memory_), "free");
    memory_ = nullptr;
    bytes_ = host.size() * 2;
    check(cudaMalloc(&memory_, bytes_), "chain table");
  }
  if (!host.empty())
    check(cudaMemcpyAsync(memory_, host.data(), host.size(), cudaMemcpyHostToDevice, stream), "chain table");
  const char* base = static_cast<const char*>(memory_);
  device_ = {reinterpret_cast<const Chain*>(base + chains),       reinterpret_cast<const ChainItem*>(base + items),
             reinterpret_cast<const ResidueRef*>(base + residues), reinterpret_cast<const int32_t*>(base + pages),
             reinterpret_cast<const int32_t*>(base + positions),   reinterpret_cast<const int32_t*>(base + chain_of),
             reinterpret_cast<const OpStep*>(base + ops),          table.page_size};
  rows_ = table.row_count();
}

}  // namespace hypic::cuda
