#include "models/tensor_parallel.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <thread>

#include "core/chain.h"
#include "core/temporary_folder.h"
#include "models/forward.h"
#include "reference/cpu_backend.h"
#include "reference/ops/testing.h"

namespace hypic {
namespace {

using reference::add_chain;
using reference::step;
using Vector = std::vector<double>;

std::vector<std::string> tiny_models() {
  std::vector<std::string> names;
  for (const std::string& name : model_names())
    if (name.ends_with("-tiny") && name != "granite-4.0-h-tiny") names.push_back(name);
  return names;
}

std::vector<std::unique_ptr<Backend>> backends_of(int ranks) {
  return ranks == 1 ? [] {
    std::vector<std::unique_ptr<Backend>> one;
    one.push_back(reference::make_cpu64_backend());
    return one;
  }() : reference::make_cpu64_ranks(ranks);
}

std::vector<Backend*> pointers(const std::vector<std::unique_ptr<Backend>>& backends) {
  std::vector<Backend*> out;
  for (const auto& backend : backends) out.push_back(backend.get());
  return out;
}

// A model's ranks, each with pools of its own.
struct Ranks {
  Ranks(const ModelSpec& spec, int ranks)
      : backends(backends_of(ranks)), model(Model::random(pointers(backends), spec, 3)) {
    for (int rank = 0; rank < ranks; ++rank)
      pools.emplace_back(*backends[rank], part(rank).spec(),
                         PoolSizes{.state_slots = 2, .operator_slots = 1, .pages = 8, .page_size = 8});
  }
  const Model& part(int rank) const { return rank == 0 ? model : model.peers()[rank - 1]; }

  // Of every row, by rank.
  std::vector<Vector> logits(const ChainTable& table) {
    std::vector<Vector> out(backends.size());
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < static_cast<int>(backends.size()); ++rank)
      threads.emplace_back([&, rank] {
        const auto n = static_cast<int64_t>(table.logit_rows.size());
        const Buffer logits(*backends[rank], DType::f64, {n, model.spec().vocabulary});
        forward(part(rank), pools[rank], table, logits);
        out[rank] = to_doubles(*backends[rank], logits);
      });
    threads.clear();
    return out;
  }

  std::vector<std::unique_ptr<Backend>> backends;
  Model model;
  std::vector<Pools> pools;
};

// A chain of 19 tokens, of which those from 7 to 14 leave an operator, and two steps on from its state.
std::vector<ChainTable> tables(int32_t vocabulary) {
  std::vector<ChainTable> all;
  int32_t position = 0;
  for (const int32_t n : {19, 1, 1}) {
    ChainTable table{.page_size = 8};
    Chain chain;
    chain.state = 1;
    chain.fresh = position == 0;
    chain.kv_begin = position;
    if (n < 19) {
      add_chain(table, chain, {step(n)});
    } else {
      std::vector<ChainItem> items = {step(7), step(8), step(4)};
      items[1].op = 0;
      add_chain(table, chain, items);
    }
    table.logit_rows.clear();
    for (int32_t i = 0; i < n; ++i) {
      table.tokens[i] = (31 * (position + i) + 7) % vocabulary;
      table.positions[i] = position + i;
      table.logit_rows.push_back(i);
    }
    table.pages = {4, 2, 7, 0};
    all.push_back(std::move(table));
    position += n;
  }
  return all;
}

// The heads [begin, end) of x [rows, heads, …].
Vector heads(const Vector& x, int64_t rows, int64_t heads, int64_t begin, int64_t end) {
  const int64_t width = static_cast<int64_t>(x.size()) / rows / heads;
  Vector out;
  for (int64_t row = 0; row < rows; ++row)
    out.insert(out.end(), x.begin() + (row * heads + begin) * width, x.begin() + (row * heads + end) * width);
  return out;
}

double difference(const Vector& x, const Vector& y) {
  double worst = x.size() == y.size() ? 0 : INFINITY, size = 0;
  for (const double e : y) size = std::max(size, std::abs(e));
  for (size_t i = 0; i < std::min(x.size(), y.size()); ++i)
    worst = std::max(worst, std::isnan(x[i]) ? INFINITY : std::abs(x[i] - y[i]));
  return worst / size;
}

TEST(TensorParallel, LogitsOfEveryArchitectureAreThoseOfOneRank) {
  for (const std::string& name : tiny_models()) {
    const ModelSpec spec = spec_named(name);
    Ranks one(spec, 1);
    std::vector<Vector> want;
    for (const ChainTable& table : tables(spec.vocabulary)) want.push_back(one.logits(table)[0]);
    for (const int ranks : {2, 4}) {
      Ranks several(spec, ranks);
      size_t t = 0;
      for (const ChainTable& table : tables(spec.vocabulary)) {
        const std::vector<Vector> found = several.logits(table);
        EXPECT_LE(difference(found[0], want[t]), 1e-11) << name << ", " << ranks << " ranks, table " << t;
        for (const Vector& other : found) EXPECT_EQ(other, found[0]) << name << ", " << ranks << " ranks";
        ++t;
      }
      // States, operators and K of each rank are those of its heads.
      for (int rank = 0; rank < ranks; ++rank)
        for (int l = 0; l < spec.layer_count(); ++l) {
          const auto same = [&](const Buffer& own, const Buffer& whole, int64_t first, int64_t rows, int64_t all,
                                int64_t begin, int64_t end) {
            if (!own) return;
            const auto part = [&](Backend& backend, const Buffer& pool) {
              return to_doubles(backend, pool.tensor().rows(first, first + rows));
            };
            EXPECT_LE(difference(part(*several.backends[rank], own),
                                 heads(part(*one.backends[0], whole), rows, all, begin, end)),
                      1e-11)
                << name << ", rank " << rank << " of " << ranks << ", layer " << l;
          };
          const LinearPool &own = several.pools[rank].linear[l], &whole = one.pools[0].linear[l];
          const int64_t all = spec.linear.value_heads, share = all / ranks;
          same(own.state, whole.state, 1, 1, all, rank * share, (rank + 1) * share);
          same(own.U, whole.U, 0, 1, all, rank * share, (rank + 1) * share);
          same(own.T, whole.T, 0, 1, all, rank * share, (rank + 1) * share);
          same(own.log_scale, whole.log_scale, 0, 1, all, rank * share, (rank + 1) * share);
          if (!spec.layers[l].attention) continue;
          const int64_t kv = spec.attention.latent() ? 1 : spec.attention.kv_heads;
          const int64_t first = kv % ranks == 0 ? rank * kv / ranks : rank / (ranks / kv);
          const int64_t last = first + (kv % ranks == 0 ? kv / ranks : 1);
          const auto page = [](const Buffer& pages) { return pages.tensor().rows(4, 5); };
          EXPECT_LE(difference(to_doubles(*several.backends[rank], page(several.pools[rank].attention[l].k)),
                               heads(to_doubles(*one.backends[0], page(one.pools[0].attention[l].k)), 8, kv, first, last)),
                    1e-11)
              << name << ", rank " << rank << " of " << ranks << ", layer " << l;
        }
    }
  }
}

// What the ranks hold of each tensor, put together, is the tensor; of heads that several have, the same.
TEST(TensorParallel, PartsMakeTheWholeTensors) {
  for (const std::string& name : tiny_models())
    for (const int ranks : {2, 4}) {
      const ModelSpec spec = spec_named(name);
      Ranks one(spec, 1), several(spec, ranks);
      std::vector<std::vector<TensorSpec>> parts;
      for (int rank = 0; rank < ranks; ++rank) parts.push_back(tensor_specs(several.part(rank).spec()));
      const std::vector<TensorSpec> whole = tensor_specs(spec);
      int64_t all = 0;
      for (size_t t = 0; t < whole.size(); ++t) {
        const Vector values = to_doubles(*one.backends[0], one.model.weight(whole[t].name));
        std::vector<int> had(values.size());
        for (int rank = 0; rank < ranks; ++rank) {
          const TensorSpec& part = parts[rank][t];
          const Vector own = to_doubles(*several.backends[rank], several.part(rank).weight(part.name));
          ASSERT_EQ(own.size(), part.size());
          size_t at = 0;
          for_each_piece(whole[t].shape, part.cut, [&](const CutPiece& piece) {
            for (int64_t row = 0; row < piece.rows; ++row)
              for (int64_t i = 0; i < piece.columns; ++i) {
                const int64_t from = piece.first + row * piece.stride + i;
                ++had.at(from);
                EXPECT_EQ(own.at(at++), values.at(from)) << name << " " << part.name;
              }
          });
          EXPECT_EQ(at, own.size()) << name << " " << part.name;
        }
        EXPECT_EQ(std::count(had.begin(), had.end(), 0), 0) << name << " " << whole[t].name;
        all += whole[t].size();
      }
      int64_t largest = 0;
      for (int rank = 0; rank < ranks; ++rank)
        largest = std::max(largest, parameter_count(several.part(rank).spec()));
      EXPECT_LT(largest, all);
    }
}

TEST(TensorParallel, ACheckpointIsCutAsRandomWeightsAre) {
  for (const std::string& name : tiny_models()) {
    const TemporaryFolder temporary;
    const std::string& folder = temporary.path();
    const auto cpu = reference::make_cpu_backend();
    write_model(Model::random(*cpu, spec_named(name), 3), folder, DType::f32);
    const auto backends = reference::make_cpu_ranks(2), others = reference::make_cpu_ranks(2);
    const Model read = Model::open(pointers(backends), folder);
    const Model made = Model::random(pointers(others), spec_named(name), 3);
    ASSERT_EQ(read.peers().size(), 1u);
    for (const TensorSpec& tensor : tensor_specs(made.spec())) {
      EXPECT_EQ(to_doubles(*backends[0], read.weight(tensor.name)), to_doubles(*others[0], made.weight(tensor.name)))
          << name << " " << tensor.name;
      EXPECT_EQ(to_doubles(*backends[1], read.peers()[0].weight(tensor.name)),
                to_doubles(*others[1], made.peers()[0].weight(tensor.name)))
          << name << " " << tensor.name;
    }
  }
}

std::string refusal(const ModelSpec& spec, int ranks) {
  try {
    part_of(spec, 0, ranks);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(TensorParallel, WhatCannotBeSharedIsRefused) {
  EXPECT_EQ(refusal(spec_named("qwen3.5-tiny"), 3),
            "qwen3.5-tiny: 3 ranks cannot share 4 value heads of linear attention: not a multiple; choose another "
            "number for --tensor-parallel");
  EXPECT_NE(refusal(spec_named("olmo-hybrid-7b"), 4), "");
  EXPECT_EQ(refusal(spec_named("olmo-hybrid-7b"), 2), "");
  for (const char* name : {"qwen3.5-122b-a10b", "qwen3.5-397b-a17b", "ring-flash-linear-2.0"})
    for (const int ranks : {2, 4, 8}) EXPECT_EQ(refusal(spec_named(name), ranks), "") << name;
}

TEST(TensorParallel, OfTheLargeModelsEveryRankHasItsShare) {
  const ModelSpec whole = spec_named("qwen3.5-122b-a10b"), part = part_of(whole, 1, 2);
  EXPECT_EQ(part.linear.value_heads, 32);
  EXPECT_EQ(part.linear.key_heads, 8);
  EXPECT_EQ(part.attention.q_heads, 16);
  EXPECT_EQ(part.attention.kv_heads, 1);
  EXPECT_EQ(part.moe.inner, 512);
  EXPECT_EQ(part.moe.experts, 256);
  const double share = static_cast<double>(parameter_count(part)) / static_cast<double>(parameter_count(whole));
  EXPECT_LT(share, 0.51);
  const ModelSpec ring = spec_named("ring-flash-linear-2.0"), half = part_of(ring, 1, 2);
  for (int l = 0; l < ring.layer_count(); ++l)
    for (int h = 0; h < 16; ++h) EXPECT_EQ(half.slopes[16 * l + h], ring.slopes[32 * l + 16 + h]);
}

}  // namespace
}  // namespace hypic
