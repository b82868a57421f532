#include "harness/cases/faults.h"

#include <algorithm>
#include <cmath>

#include "core/check.h"
#include "harness/cases/layer.h"
#include "reference/laws.h"

namespace hypic::conformance {
namespace {

using reference::make_inputs;
using reference::make_state;
using reference::Style;

constexpr uint64_t kSeed = 23;

void fill(Array& x, double value) { std::fill(x.data.begin(), x.data.end(), value); }

// One chain over all tokens from a drawn state, its operator over all but the first tokens.
void run_one(Context& c, const FamilyReference& family, const Dims& dims, const Inputs& inputs,
             const std::string& what) {
  Layer layer(c, family, dims, inputs, {.operators = 1});
  layer.set_state(0, make_state(family, dims, kSeed));
  const int64_t h = std::min<int64_t>(dims.T, 3);
  layer.run(Plan().chain(0).step(h).step(dims.T - h, 0));
  layer.check(what);
}

}  // namespace

void strong_gates(Context& c, const FamilyReference& family) {
  const Dims dims{64, 1, 1, 128, 128};
  Inputs inputs = make_inputs(family, dims, Style::random, kSeed);
  fill(inputs.at("beta"), 0.5);
  fill(inputs.at("g"), -20);
  run_one(c, family, dims, inputs, "g = −20");
  fill(inputs.at("g"), -0.1);
  const int64_t gates = inputs.at("g").product(1);
  std::fill_n(inputs.at("g").data.begin() + 31 * gates, gates, -100.0);
  run_one(c, family, dims, inputs, "g = −100 at token 31");
}

void unit_decay(Context& c, const FamilyReference& family) {
  const Dims dims{130, 1, 1, 128, 128};
  Inputs inputs = make_inputs(family, dims, Style::no_decay, kSeed);
  for (const double beta : {0.5, 1.0}) {
    fill(inputs.at("beta"), beta);
    run_one(c, family, dims, inputs, str("β = ", beta));
  }
}

void nearly_equal_keys(Context& c, const FamilyReference& family) {
  const Dims dims{64, 1, 1, 128, 128};
  Inputs inputs = make_inputs(family, dims, Style::random, kSeed);
  fill(inputs.at("beta"), 0.99);
  fill(inputs.at("g"), -1e-4);
  Array& k = inputs.at("k");
  Draw draw(kSeed);
  for (int64_t t = 1; t < dims.T; ++t) {
    reference::Vector row = k.row(0, 0);
    for (double& x : row) x += 1e-2 * draw.normal();
    k.set_row(row / std::sqrt(reference::dot(row, row)), t, 0);
  }
  run_one(c, family, dims, inputs, "one key and 1 % of noise");
}

void exponent_clamp(Context& c, const FamilyReference& family) {
  const Dims dims{298, 1, 1, 128, 128};
  Inputs inputs = make_inputs(family, dims, Style::random, kSeed);
  fill(inputs.at("q"), 0);
  fill(inputs.at("k"), 0);
  fill(inputs.at("g"), -0.05);
  for (int64_t t = 0; t < dims.T; ++t) {
    inputs.at("q")(t, 0, 0) = inputs.at("k")(t, 0, 0) = 1;
    inputs.at("g")(t, 0, 0) = -20;
  }
  run_one(c, family, dims, inputs, "keys on a channel with g = −20");
}

void partial_chunk(Context& c, const FamilyReference& family) {
  for (const int64_t T : {1, 31, 33, 63, 65, 127}) {
    const Dims dims{T, 1, 1, 128, 128};
    Inputs inputs = make_inputs(family, dims, Style::random, kSeed);
    fill(inputs.at("g"), -0.3);
    run_one(c, family, dims, inputs, str(T, " tokens, g = −0.3"));
  }
}

void state_layout(Context& c, const FamilyReference& family) {
  for (const int64_t dk : {128, 64}) {
    const Dims dims{8, 1, 1, dk, 128};
    Array S({1, dk, 128});
    for (int64_t i = 0; i < dk; ++i)
      for (int64_t j = 0; j < 128; ++j) S(0, i, j) = 1e-4 * static_cast<double>(i + 1000 * j);
    Inputs inputs = make_inputs(family, dims, Style::random, kSeed);
    Layer layer(c, family, dims, inputs, {});
    layer.set_state(0, S);
    layer.run(Plan().chain(0).step(8));
    layer.check(str("h0[k, v] = k + 1000 v, ", dk, " × 128"));
    fill(inputs.at("beta"), 0);
    fill(inputs.at("g"), 0);
    Layer still(c, family, dims, inputs, {});
    still.set_state(0, S);
    still.run(Plan().chain(0).step(8));
    const double got = still.state(0)(0, 3, 77), want = rounded(S, c.state())(0, 3, 77);
    c.expect(got == want, str("element (3, 77) of ", dk, " × 128"),
             str("is ", got, ", expected ", want));
  }
}

void empty_chains(Context& c, const FamilyReference& family) {
  const Dims dims{130, 1, 1, 128, 128};
  const Inputs inputs = make_inputs(family, dims, Style::random, kSeed);
  Layer layer(c, family, dims, inputs, {.states = 5});
  Plan plan, nothing;
  for (int32_t i = 0; i < 5; ++i) {
    layer.set_state(i, make_state(family, dims, kSeed + i));
    plan.chain(i).step(i % 2 ? 65 : 0);
    nothing.chain(i).step(0);
  }
  std::vector<Array> before;
  for (int32_t i = 0; i < 5; ++i) before.push_back(layer.state(i));
  layer.run(nothing);
  for (int32_t i = 0; i < 5; ++i)
    c.identical(str("state ", i, " of a batch without tokens"), layer.state(i), before[i]);
  layer.run(plan);
  layer.check("offsets 0, 0, 65, 65, 130, 130");
  for (const int32_t i : {0, 2, 4})
    c.identical(str("state ", i, " of an empty chain"), layer.state(i), before[i]);
}

void ragged_tails(Context& c, const FamilyReference& family) {
  std::vector<int64_t> lengths = {1238, 1199, 1240, 1216, 1187, 1203, 519};
  Dims dims{0, 48, 48, 128, 128};
  if (!c.thorough) {
    for (int64_t& T : lengths) T = T % 128 + 64;  // the tails stay
    dims = {0, 3, 3, 16, 16};
  }
  for (const int64_t T : lengths) dims.T += T;
  const Inputs inputs = make_inputs(family, dims, Style::random, kSeed);
  Layer layer(c, family, dims, inputs, {.states = 7});
  Plan plan;
  for (int32_t i = 0; i < 7; ++i) {
    layer.set_state(i, make_state(family, dims, kSeed + i));
    plan.chain(i).step(lengths[i]);
  }
  layer.run_repeatedly("initial states and ragged tails", plan, c.thorough ? 50 : 4);
  layer.check("initial states and ragged tails");
}

void head_sizes(Context& c, const FamilyReference& family) {
  for (const int64_t d : {64, 128}) {
    const Dims dims{c.thorough ? 256 : 100, c.thorough ? 4 : 1, c.thorough ? 4 : 1, d, d};
    run_one(c, family, dims, make_inputs(family, dims, Style::random, kSeed), str("d = ", d));
  }
}

void determinism(Context& c, const FamilyReference& family) {
  const Dims dims = c.thorough ? Dims{4096, 32, 32, 128, 128} : Dims{512, 4, 4, 32, 32};
  const Inputs inputs = make_inputs(family, dims, Style::random, kSeed);
  const int64_t half = dims.T / 2;
  Layer batch(c, family, dims, inputs, {.states = 2}), alone(c, family, dims, inputs, {.states = 2});
  for (Layer* layer : {&batch, &alone})
    for (const int i : {0, 1}) layer->set_state(i, make_state(family, dims, kSeed + i));
  batch.run_repeatedly("two chains", Plan().chain(0).step(half).chain(1).step(dims.T - half), c.thorough ? 100 : 8);
  alone.run(Plan().chain(0).step(half));
  alone.check_same("alone and in a batch", batch, 0, half, {{0, 0}}, {});
}

void chunked_prefill(Context& c, const FamilyReference& family) {
  const auto compare = [&](const Dims& dims, const std::vector<int64_t>& parts) {
    const Inputs inputs = make_inputs(family, dims, Style::random, kSeed);
    Layer whole(c, family, dims, inputs, {}), chunks(c, family, dims, inputs, {});
    for (Layer* layer : {&whole, &chunks}) layer->set_state(0, make_state(family, dims, kSeed));
    whole.run(Plan().chain(0).step(dims.T));
    int64_t first = 0;
    for (const int64_t part : parts) {
      chunks.run(Plan().chain(0).step(part), first);
      first += part;
    }
    const std::string what = str(dims.T, " tokens in ", parts.size(), " forwards");
    chunks.check(what);
    chunks.check_same(what, whole, 0, dims.T, {{0, 0}}, {});
  };
  compare({600, 2, 4, 32, 16}, {250, 350});
  const int64_t part = c.thorough ? 8192 : 512;
  compare({4 * part, 1, 2, 16, 16}, {part, part, part, part});
}

void large_state(Context& c, const FamilyReference& family) {
  const Dims dims{8, 1, 1, 128, 128};
  Inputs inputs = make_inputs(family, dims, Style::random, kSeed);
  fill(inputs.at("q"), 0);
  fill(inputs.at("k"), 0);
  fill(inputs.at("g"), -1);
  Array S({1, 128, 128});
  S(0, 0, 0) = 65536;
  Layer layer(c, family, dims, inputs, {});
  layer.set_state(0, S);
  layer.run(Plan().chain(0).step(8));
  layer.check("65536 in the state, q = k = 0, g = −1");
}

}  // namespace hypic::conformance
