// Softmax attention over pages: prefill, decode, and the seams of a request that hits every
// segment.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>

#include "core/check.h"
#include "harness/bench/job.h"

namespace hypic::bench {
namespace {

struct Heads {
  int64_t q, kv, D;
  int rotary_dim;
  double theta = 1e7;
};

// Chains with K, V of all that they see in pages whose numbers are in no order.
class Pages {
 public:
  // Rows at these positions, behind own tokens that are in the pages, and residues that lie before
  // them.
  void chain(const std::vector<int32_t>& positions, int32_t kv_begin,
             std::vector<ResidueRef> residues = {}) {
    const auto c = static_cast<int32_t>(table_.chains.size());
    Chain chain;
    chain.state = c;
    chain.row_begin = table_.row_count();
    chain.row_end = chain.row_begin + static_cast<int32_t>(positions.size());
    chain.kv_begin = kv_begin;
    chain.page_begin = reserve(kv_begin + static_cast<int32_t>(positions.size()));
    chain.residue_begin = static_cast<int32_t>(table_.residues.size());
    for (ResidueRef& residue : residues) {
      residue.page_begin = reserve(residue.last);
      table_.residues.push_back(residue);
    }
    chain.residue_end = static_cast<int32_t>(table_.residues.size());
    chain.item_begin = c;
    chain.item_end = c + 1;
    ChainItem item;
    item.begin = chain.row_begin;
    item.end = chain.row_end;
    table_.items.push_back(item);
    table_.chains.push_back(chain);
    table_.positions.insert(table_.positions.end(), positions.begin(), positions.end());
    table_.tokens.resize(table_.positions.size());
    table_.chain_of.resize(table_.positions.size(), c);
  }

  void run(Job& job, const Heads& heads) {
    const auto count = static_cast<int64_t>(table_.pages.size());
    const int64_t R = table_.row_count(), page = table_.page_size;
    Draw draw(5);
    for (int64_t i = count - 1; i > 0; --i)
      std::swap(table_.pages[i], table_.pages[draw.integer(0, i)]);
    const AttentionArgs a{.q = job.normal({R, heads.q, heads.D}),
                          .k_pages = job.normal({count, page, heads.kv, heads.D}),
                          .v_pages = job.normal({count, page, heads.kv, heads.D}),
                          .rotary_dim = heads.rotary_dim,
                          .theta = heads.theta,
                          .scale = 1 / std::sqrt(static_cast<double>(heads.D)),
                          .out = job.output("out", {R, heads.q, heads.D})};
    const auto chains = static_cast<int64_t>(table_.chains.size());
    job.begin(std::move(table_), chains, 0, count);
    job.cost = attention_cost(a, job.table());
    job.enqueue = [&job, a] { job.backend.attention(a); };
  }

 private:
  int32_t reserve(int32_t tokens) {
    const auto begin = static_cast<int32_t>(table_.pages.size());
    for (int32_t i = 0; i * table_.page_size < tokens; ++i) table_.pages.push_back(begin + i);
    return begin;
  }
  ChainTable table_;
};

std::vector<int32_t> range(int64_t begin, int64_t end) {
  std::vector<int32_t> all(end - begin);
  std::iota(all.begin(), all.end(), static_cast<int32_t>(begin));
  return all;
}

}  // namespace

void add_attention(std::vector<Bench>& all, const Sizes& sizes) {
  const Heads heads{sizes(16, 4), sizes(2, 2), sizes(256, 32), static_cast<int>(sizes(64, 8))};
  const std::string shape = str("Hq", heads.q, "_Hkv", heads.kv, "_d", heads.D);
  for (const int64_t T : sizes.small ? std::vector<int64_t>{70} : std::vector<int64_t>{8192, 32768})
    all.push_back({str("attention/prefill/", shape, "/T", T), [=](Job& job) {
                     Pages pages;
                     pages.chain(range(0, T), 0);
                     pages.run(job, heads);
                   }});

  // Segments prefilled alone, side by side.
  const int64_t segments = sizes(64, 4), length = sizes(512, 40), seam = 8;
  all.push_back({str("attention/cold/", shape, "/", segments, "x", length), [=](Job& job) {
                   Pages pages;
                   for (int64_t i = 0; i < segments; ++i) pages.chain(range(0, length), 0);
                   pages.run(job, heads);
                 }});

  // Segments whose K, V stand at local positions, but for the seam at their start, which is
  // recomputed.
  all.push_back(
      {str("attention/seams/", shape, "/", segments, "x", seam, "_of_", segments * length),
       [=](Job& job) {
         std::vector<int32_t> positions;
         std::vector<ResidueRef> residues;
         for (int64_t i = 0; i < segments; ++i) {
           const auto start = static_cast<int32_t>(i * length);
           for (const int32_t p : range(start, start + seam)) positions.push_back(p);
           residues.push_back({.first = static_cast<int32_t>(seam),
                               .last = static_cast<int32_t>(length),
                               .start = start,
                               .shift = start});
         }
         Pages pages;
         pages.chain(positions, 0, residues);
         pages.run(job, heads);
       }});

  const int64_t context = sizes(32768, 100);
  for (const int64_t batch : sizes.small ? std::vector<int64_t>{1, 3} : std::vector<int64_t>{1, 64})
    all.push_back(
        {str("attention/decode/", shape, "/", context, "_tokens/B", batch), [=](Job& job) {
           Pages pages;
           for (int64_t i = 0; i < batch; ++i)
             pages.chain(range(context - 1, context), static_cast<int32_t>(context - 1));
           pages.run(job, heads);
         }});
}

}  // namespace hypic::bench
