#include "harness/cases/family_case.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/check.h"
#include "harness/cases/layer.h"
#include "reference/laws.h"

namespace hypic::conformance {
namespace {

using reference::InputSpec;
using reference::kStyles;
using reference::make_inputs;
using reference::make_state;
using reference::Style;

constexpr uint64_t kSeed = 5;

Dims with_tokens(Dims dims, int64_t T) {
  dims.T = T;
  return dims;
}

bool is_repeated(Style style) { return style == Style::repeated || style == Style::equal_keys; }

// The cut of a segment of T tokens: its head seam and where its tail seam begins.
struct Seams {
  int64_t h, e;
  explicit Seams(int64_t T) : h(std::min<int64_t>(T % 9, T)), e(std::max(h, T - T % 4)) {}
};

// [0, h), the operator of [h, e), [e, T).
void add_segment(Plan& plan, int64_t T, int32_t op) {
  const Seams s(T);
  plan.step(s.h).step(s.e - s.h, op).step(T - s.e);
}

// Every length from 0 to 127 as a chain of one ragged batch, each from a state of its own; then
// some of them alone.
void lengths(Context& c, const FamilyReference& family, const Dims& shape) {
  constexpr int32_t kChains = 128;
  const Dims dims = with_tokens(shape, kChains * (kChains - 1) / 2);
  const Inputs inputs = make_inputs(family, dims, Style::random, kSeed);
  Layer batch(c, family, dims, inputs,
              {.states = kChains + 1, .operators = kChains + 1});  // one slot of each stays unused
  Plan plan;
  std::vector<int64_t> first(kChains);
  for (int32_t i = 0; i < kChains; ++i) {
    const int64_t T = i * 37 % kChains;  // each length once, long and short in turn
    first[T] = plan.tokens();
    const auto slot = static_cast<int32_t>(T);
    batch.set_state(slot, make_state(family, dims, kSeed + T));
    add_segment(plan.chain(slot), T, slot);
  }
  batch.run(plan);
  batch.check("lengths 0 to 127 in a batch");
  for (const int32_t T : {0, 1, 2, 31, 63, 64, 65, 127}) {
    Layer alone(c, family, dims, inputs, {.states = 1, .operators = 1});
    alone.set_state(0, make_state(family, dims, kSeed + T));
    Plan one;
    add_segment(one.chain(0), T, 0);
    alone.run(one, first[T]);
    alone.check_same(str(T, " tokens alone and in a batch"), batch, first[T], first[T] + T,
                     {{0, T}}, {{0, T}});
  }
}

void style(Context& c, const FamilyReference& family, const Dims& shape, Style style) {
  const Dims dims = with_tokens(shape, 130);
  Layer layer(c, family, dims, make_inputs(family, dims, style, kSeed),
              {.operators = 1, .repeated = is_repeated(style)});
  layer.set_state(0, make_state(family, dims, kSeed));
  layer.run(Plan().chain(0).step(8).step(118, 0).step(4));
  layer.check("130 tokens");
}

// Other numbers of heads and sizes than the family's own small shape.
void shapes(Context& c, const FamilyReference& family, const Dims&) {
  for (Dims dims : {Dims{65, 1, 1, 16, 16, 2}, Dims{65, 1, 3, 12, 8, 5}, Dims{65, 3, 3, 7, 5, 1},
                    Dims{65, 2, 4, 64, 16, 2}, Dims{65, 1, 2, 16, 64, 2}}) {
    dims = family.fit(dims);
    Layer layer(c, family, dims, make_inputs(family, dims, Style::random, kSeed), {.operators = 1});
    layer.set_state(0, make_state(family, dims, kSeed));
    layer.run(Plan().chain(0).step(5).step(60, 0));
    layer.check(str(dims.Hk, " of ", dims.Hv, " heads, ", dims.dk, " × ", dims.dv));
  }
}

// Chains that share a batch do not touch each other: whatever one holds, NaN included, the others
// give the same.
void neighbours(Context& c, const FamilyReference& family, const Dims& shape) {
  const std::vector<int64_t> lengths = {17, 64, 0, 33};
  const Dims dims = with_tokens(shape, 114);
  const Inputs inputs = make_inputs(family, dims, Style::random, kSeed);
  const auto run = [&](const Inputs& in, double spoilt) {
    auto layer =
        std::make_unique<Layer>(c, family, dims, in, LayerSetup{.states = 4, .operators = 4});
    Plan plan;
    for (int32_t i = 0; i < 4; ++i) {
      Array S = make_state(family, dims, kSeed + i);
      if (i == 1)
        for (double& x : S.data) x *= spoilt;
      layer->set_state(i, S);
      plan.chain(i).step(lengths[i], i);
    }
    layer->run(plan);
    return layer;
  };
  const auto clean = run(inputs, 1);
  clean->check("four chains");
  for (const double spoilt : {1e3, std::nan("")}) {
    Inputs changed = inputs;
    for (const InputSpec& spec : family.inputs(dims)) {
      if (!spec.per_token || spec.role == reference::Role::position) continue;
      Array& x = changed.at(spec.name);
      const bool grows = spec.role == reference::Role::value;
      const double factor = std::isnan(spoilt) || grows ? spoilt : 1;
      for (int64_t i = 17 * x.product(1); i < 81 * x.product(1); ++i) x.data[i] *= factor;
    }
    const auto other = run(changed, spoilt);
    const std::string what = std::isnan(spoilt) ? "beside NaN" : "beside large values";
    other->check_same(what, *clean, 0, 17, {{0, 0}, {2, 2}, {3, 3}}, {{0, 0}, {2, 2}, {3, 3}});
    other->check_same(what, *clean, 81, 114, {}, {});
  }
}

// A chain cut into forwards, carrying its state and its operator, and one cut into steps.
void splits(Context& c, const FamilyReference& family, const Dims& shape) {
  const int64_t T = 130, h = 3;
  const Dims dims = with_tokens(shape, T);
  const Inputs inputs = make_inputs(family, dims, Style::random, kSeed);
  const Array S0 = make_state(family, dims, kSeed);
  const LayerSetup setup{.states = 1, .operators = 1};
  Layer whole(c, family, dims, inputs, setup);
  whole.set_state(0, S0);
  whole.run(Plan().chain(0).step(h).step(T - h, 0));
  whole.check("whole");
  for (const int64_t cut : {4, 63, 64, 65, 100, 129}) {
    Layer parts(c, family, dims, inputs, setup);
    parts.set_state(0, S0);
    parts.run(Plan().chain(0).step(h).step(cut - h, 0));
    parts.run(Plan().chain(0).step(T - cut, 0, cut - h), cut);
    const std::string what = str("two forwards, cut at ", cut);
    parts.check(what);
    parts.check_same(what, whole, 0, T, {{0, 0}}, {{0, 0}});
  }
  Layer steps(c, family, dims, inputs, setup);
  steps.set_state(0, S0);
  steps.run(Plan().chain(0).step(1).step(0).step(2).step(T - h, 0));
  steps.check_same("one forward, four steps", whole, 0, T, {{0, 0}}, {{0, 0}});
  Layer single(c, family, dims, inputs, setup);
  single.set_state(0, S0);
  single.run(Plan().chain(0).step(h));
  for (int64_t t = h; t < T; ++t) single.run(Plan().chain(0).step(1, 0, t - h), t);
  single.check("token by token");
}

// The same run several times has the same bits, on any backend.
void repeats(Context& c, const FamilyReference& family, const Dims& shape) {
  const Dims dims = with_tokens(shape, 102);
  const Inputs inputs = make_inputs(family, dims, Style::random, kSeed);
  Layer layer(c, family, dims, inputs, {.states = 2, .operators = 2});
  for (const int i : {0, 1}) layer.set_state(i, make_state(family, dims, kSeed + i));
  layer.run_repeatedly("the same run", Plan().chain(0).step(97, 0).chain(1).step(5, 1), c.thorough ? 100 : 8);
}

// A fresh chain does not see what its slot holds, and writes it.
void fresh(Context& c, const FamilyReference& family, const Dims& shape) {
  const Dims dims = with_tokens(shape, 70);
  Array old = make_state(family, dims, kSeed);
  for (double& x : old.data) x = 1e4;
  for (const int64_t T : {0, 70}) {
    Layer layer(c, family, dims, make_inputs(family, dims, Style::random, kSeed), {.operators = 1});
    layer.set_state(0, old);
    layer.run(Plan().chain(0, true).step(T, 0));
    layer.check(str("a fresh chain of ", T, " over a used slot"));
  }
}

// A segment alone leaves its operator; chains of the same forward jump over it in every mode.
void reuse(Context& c, const FamilyReference& family, const Dims& shape) {
  const Dims dims = with_tokens(shape, 40 + 4 * 15);
  Layer layer(c, family, dims, make_inputs(family, dims, Style::random, kSeed),
              {.states = 6, .operators = 2});
  Plan plan;
  plan.chain(0, true).step(3).step(30, 0).step(7);
  int32_t slot = 1;
  for (const Compose compose : {Compose::transfer, Compose::add, Compose::last, Compose::zero}) {
    layer.set_state(slot, make_state(family, dims, kSeed + slot));
    plan.chain(slot++, false, 1).step(5);
    if (compose == Compose::transfer) plan.save(5);
    plan.jump(0, 30, compose).step(4).without_keep().step(6);
  }
  layer.run(plan);
  layer.check("jumps in four modes");
}

// A request over many segments, as reuse has them: a few rows before each jump, jumps in a row, a long step between.
void walk(Context& c, const FamilyReference& family, const Dims& shape) {
  constexpr int32_t kSegments = 7;
  const int64_t n = 20, rows = 8 + 3 + 70 + 8 + 66 + 17;
  const Dims dims = with_tokens(shape, kSegments * n + rows);
  Layer layer(c, family, dims, make_inputs(family, dims, Style::random, kSeed),
              {.states = kSegments + 2, .operators = kSegments});
  Plan plan;
  for (int32_t i = 0; i < kSegments; ++i) plan.chain(i, true).step(n, i);
  plan.chain(kSegments, true, 1).step(8).jump(0, n).step(3).jump(1, n).jump(2, n).step(70);
  plan.save(kSegments + 1).jump(3, n).jump(4, n).step(8).jump(5, n).step(66).without_keep().jump(6, n).step(17);
  layer.run(plan);
  layer.check(str(kSegments, " jumps"));
}

// Keys carry RoPE: the segment was built at position 0 and is reused further on.
void relocation(Context& c, const FamilyReference& family, const Dims& shape) {
  const int64_t h = 3, n = 33, shift = 137;
  const Dims dims = with_tokens(shape, n + h + 9);
  std::vector<int64_t> positions(n);
  std::iota(positions.begin(), positions.end(), 0);
  for (int64_t t = 0; t < h; ++t) positions.push_back(shift + t);
  for (int64_t t = 0; t < 9; ++t) positions.push_back(shift + n + t);
  const Inputs inputs =
      at_positions(family, dims, make_inputs(family, dims, Style::random, kSeed), positions);
  Layer layer(c, family, dims, inputs, {.states = 2, .operators = 1, .rope = true});
  layer.set_state(1, make_state(family, dims, kSeed));
  layer.run(Plan()
                .chain(0, true)
                .step(h)
                .step(n - h, 0)
                .chain(1, false, 1)
                .step(h)
                .jump(0, n - h, Compose::transfer, shift)
                .step(9));
  layer.check(str("moved by ", shift));
}

// Rows that are columns of wider tensors.
void strided(Context& c, const FamilyReference& family, const Dims& shape) {
  const Dims dims = with_tokens(shape, 67);
  Layer layer(c, family, dims, make_inputs(family, dims, Style::random, kSeed),
              {.operators = 1, .gap = 5});
  layer.set_state(0, make_state(family, dims, kSeed));
  layer.run(Plan().chain(0).step(2).step(65, 0));
  layer.check("rows apart");
}

// The layer's input added to its outputs, as Mamba does.
void skip(Context& c, const FamilyReference& family, const Dims& shape) {
  const Dims dims = with_tokens(shape, 20);
  Layer layer(c, family, dims, make_inputs(family, dims, Style::random, kSeed), {.skip = true});
  layer.set_state(0, make_state(family, dims, kSeed));
  layer.run(Plan().chain(0).step(20));
  layer.check("skip · v");
}

// Heads as wide as models have them, which kernels for tensor cores ask for.
void wide(Context& c, const FamilyReference& family, const Dims&) {
  const Dims half = family.fit({0, 1, 2, 64, 32, 2}), whole = family.fit({0, 1, 1, 128, 128, 2});
  lengths(c, family, half);
  neighbours(c, family, half);
  fresh(c, family, half);
  for (const Dims& dims : {half, whole}) {
    splits(c, family, dims);
    reuse(c, family, dims);
    walk(c, family, dims);
    repeats(c, family, dims);
    if (family.traits().relocatable) relocation(c, family, dims);
  }
}

// Slow heads over a long prompt, where roundings add up.
void long_prompt(Context& c, const FamilyReference& family, const Dims&) {
  const Dims dims = family.fit({32768, 2, 4, 4, 4, 2});
  for (const Style style : {Style::slow, Style::repeated}) {
    Layer layer(c, family, dims, make_inputs(family, dims, style, kSeed),
                {.repeated = is_repeated(style)});
    layer.set_state(0, make_state(family, dims, kSeed));
    layer.run(Plan().chain(0).step(dims.T));
    layer.check(str(dims.T, " tokens, ", name_of(style)));
  }
}

}  // namespace

FamilyCase case_of(Family family) {
  switch (family) {
#define HYPIC_FAMILY(name, ...) \
  case Family::name:            \
    return name##_case();
#include "core/families.def"
#undef HYPIC_FAMILY
  }
  fail("unknown family");
}

std::vector<Case> family_cases() {
  std::vector<Case> cases;
  for (const FamilyTraits& traits : kFamilies) {
    const FamilyCase twin = case_of(traits.family);
    HYPIC_CHECK(twin.family == traits.family);
    if (!twin.no_cell.empty()) continue;
    const std::shared_ptr<FamilyReference> family = reference::make_family(traits.family);
    const Dims dims = family->fit(twin.dims);
    const auto add = [&](const std::string& name, auto run) {
      cases.push_back({str(traits.name, "/", name), "linear_attention", std::string(traits.name),
                       [=](Context& c) { run(c, *family, dims); }});
    };
    add("lengths", lengths);
    for (const Style s : kStyles)
      add(std::string(name_of(s)),
          [s](Context& c, const FamilyReference& f, const Dims& d) { style(c, f, d, s); });
    add("shapes", shapes);
    add("neighbours", neighbours);
    add("splits", splits);
    add("repeats", repeats);
    add("fresh", fresh);
    add("reuse", reuse);
    if (traits.relocatable) add("relocation", relocation);
    add("strided", strided);
    if (traits.family == Family::mamba2) add("skip", skip);
    if (traits.readout == Readout::plain && traits.side == Side::key &&
        (traits.decay == Decay::none || traits.decay == Decay::scalar))
      add("wide", wide);
    add("long", long_prompt);
    for (const Fault& fault : twin.faults)
      add(fault.name,
          [run = fault.run](Context& c, const FamilyReference& f, const Dims&) { run(c, f); });
  }
  return cases;
}

}  // namespace hypic::conformance
