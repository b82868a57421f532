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
using reference::Role;
using reference::Style;

constexpr uint64_t kSeed = 5;

Dims with_tokens(Dims dims, int64_t T) {
  dims.T = T;
  return dims;
}

// Whose layers add skip · v.
bool is_mamba2(const FamilyReference& family) { return family.traits().family == Family::mamba2; }

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
    Layer alone(c, family, with_tokens(shape, T), tokens_of(family, dims, inputs, first[T], first[T] + T),
                {.states = 1, .operators = 1});
    alone.set_state(0, make_state(family, dims, kSeed + T));
    Plan one;
    add_segment(one.chain(0), T, 0);
    alone.run(one);
    alone.check_same(str(T, " tokens alone and in a batch"), batch, 0, T, {{0, T}}, {{0, T}}, first[T]);
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

// Segments with a head seam, reused between two rows of another chain.
void shapes_of(Context& c, const FamilyReference& family, std::initializer_list<Dims> all) {
  for (Dims dims : all) {
    dims = family.fit(dims);
    const int64_t h = std::min<int64_t>(dims.T - 2, 5), span = dims.T - 2 - h;
    Layer layer(c, family, dims, make_inputs(family, dims, Style::random, kSeed), {.states = 2, .operators = 1});
    for (const int i : {0, 1}) layer.set_state(i, make_state(family, dims, kSeed + i));
    layer.run(Plan().chain(0).step(h).step(span, 0).chain(1, false, 1).step(1).jump(0, span).step(1));
    layer.check(str(dims.Hk, " of ", dims.Hv, " heads, ", dims.dk, " × ", dims.dv));
  }
}

// Other numbers of heads and sizes than the family's own small shape, up to what fits no shared memory.
void shapes(Context& c, const FamilyReference& family, const Dims&) {
  shapes_of(c, family,
            {{65, 1, 1, 16, 16, 2}, {65, 1, 3, 12, 8, 5}, {65, 3, 3, 7, 5, 1}, {65, 2, 4, 64, 16, 2},
             {65, 1, 2, 16, 64, 2}, {9, 1, 7, 4, 2, 1}, {8, 1, 1, 160, 176, 2}});
}

// Chains that share a batch do not touch each other: whatever one holds, NaN included, the others
// give the same.
void neighbours(Context& c, const FamilyReference& family, const Dims& shape) {
  const std::vector<int64_t> lengths = {17, 64, 0, 33};
  const Dims dims = with_tokens(shape, 114 + 4 * 3);
  const Inputs inputs = make_inputs(family, dims, Style::random, kSeed);
  const auto run = [&](const Inputs& in, double spoilt) {
    auto layer =
        std::make_unique<Layer>(c, family, dims, in, LayerSetup{.states = 8, .operators = 4});
    Plan plan;
    for (int32_t i = 0; i < 8; ++i) {
      Array S = make_state(family, dims, kSeed + i);
      if (i % 4 == 1)
        for (double& x : S.data) x *= spoilt;
      layer->set_state(i, S);
      if (i < 4)
        plan.chain(i).step(lengths[i], i);
      else
        plan.chain(i, false, 1).step(1).jump(i - 4, lengths[i - 4]).step(2);
    }
    layer->run(plan);
    return layer;
  };
  const auto clean = run(inputs, 1);
  clean->check("four chains, and four that jump over them");
  for (const double spoilt : {1e3, std::nan("")}) {
    Inputs changed = inputs;
    for (const InputSpec& spec : family.inputs(dims)) {
      if (!spec.per_token || spec.role == reference::Role::position) continue;
      Array& x = changed.at(spec.name);
      const bool grows = spec.role == reference::Role::value;
      const double factor = std::isnan(spoilt) || grows ? spoilt : 1;
      for (const auto& [begin, end] : {std::pair{17, 81}, {117, 120}})
        for (int64_t i = begin * x.product(1); i < end * x.product(1); ++i) x.data[i] *= factor;
    }
    const auto other = run(changed, spoilt);
    const std::string what = std::isnan(spoilt) ? "beside NaN" : "beside large values";
    other->check_same(what, *clean, 0, 17, {{0, 0}, {2, 2}, {3, 3}, {4, 4}, {6, 6}, {7, 7}},
                      {{0, 0}, {2, 2}, {3, 3}});
    other->check_same(what, *clean, 81, 117, {}, {});
    other->check_same(what, *clean, 120, 126, {}, {});
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
  const Dims dims = with_tokens(shape, 97 + 5 + 1 + 2 + 44);
  const Inputs inputs = make_inputs(family, dims, Style::random, kSeed);
  Layer layer(c, family, dims, inputs, {.states = 6, .operators = 2});
  for (const int i : {0, 1, 2, 3, 4}) layer.set_state(i, make_state(family, dims, kSeed + i));
  Plan plan;
  plan.chain(0).step(97, 0).chain(1).step(5, 1).chain(2).step(1).chain(3).step(2).without_keep();
  plan.chain(4, false, 1).step(3).jump(0, 97).save(5).step(1).jump(1, 5).step(40);
  layer.run_repeatedly("the same run", plan, c.thorough ? 100 : 8);
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
    plan.jump(0, 30, compose, 1000 * slot).step(4).without_keep().step(6);  // keys without RoPE: nothing turns
  }
  layer.run(plan);
  layer.check("jumps in four modes");
}

// A request over many segments, as reuse has them: a few rows before each jump, jumps in a row, a long step between.
void walk(Context& c, const FamilyReference& family, const Dims& shape) {
  constexpr int32_t kSegments = 7;
  const int64_t n = 20, rows = 8 + 3 + 70 + 8 + 66 + 17;
  const Dims dims = with_tokens(shape, kSegments * n + rows);
  const Inputs inputs = make_inputs(family, dims, Style::random, kSeed);
  const LayerSetup setup{.states = kSegments + 2, .operators = kSegments};
  const auto build = [&](Plan& plan) {
    for (int32_t i = 0; i < kSegments; ++i) plan.chain(i, true).step(n, i);
  };
  const auto request = [&](Plan& plan, int32_t level) {
    plan.chain(kSegments, true, level).step(8).jump(0, n).step(3).jump(1, n).jump(2, n).step(70);
    plan.save(kSegments + 1).jump(3, n).jump(4, n).step(8).jump(5, n).step(66).without_keep().jump(6, n).step(17);
  };
  Layer together(c, family, dims, inputs, setup), later(c, family, dims, inputs, setup);
  Plan all, segments, reused;
  build(all);
  request(all, 1);
  together.run(all);
  together.check(str(kSegments, " jumps"));
  build(segments);
  request(reused, 0);
  later.run(segments);
  later.run(reused, kSegments * n);
  const std::string what = str(kSegments, " jumps over what an earlier forward left");
  later.check(what);
  later.check_same(what, together, kSegments * n, dims.T, {{kSegments, kSegments}, {kSegments + 1, kSegments + 1}}, {});
}

// Every kind of item beside every other, on three levels: jumps first, last, alone and with a save, spans of no token
// and of one, single tokens that leave their state alone, operators of steps that do, over two forwards and after a
// jump, into slots that held another, slots that an earlier chain or level wrote, chains without an item, a forward
// without a row.
void items(Context& c, const FamilyReference& family, const Dims& shape) {
  constexpr int32_t kStates = 28, kOperators = 7;  // the last of each stays unused
  const Dims dims = with_tokens(shape, 41 + 33 + 16);
  Layer layer(c, family, dims, make_inputs(family, dims, Style::random, kSeed),
              {.states = kStates, .operators = kOperators});
  for (const int32_t slot : {2, 3, 4, 6, 8, 10, 12, 18}) layer.set_state(slot, make_state(family, dims, kSeed + slot));
  for (const int32_t slot : {22, 23}) layer.set_state(slot, Array(family.state_shape(dims), std::nan("")));
  Plan before;
  before.chain(0, true).step(3).step(20, 0).save(1);
  before.chain(2).step(1, 1).chain(3).step(0, 2).chain(4).step(9, 3).without_keep().chain(5, true).step(4, 4);
  before.chain(6).step(1).without_keep().chain(7, true).step(1).without_keep();
  before.chain(8).step(1).chain(9, true).step(1).chain(10).chain(11, true);
  layer.run(before);
  Plan plan;
  plan.chain(5).step(5, 4, 4);
  plan.chain(12).jump(0, 20).save(13).step(1).jump(3, 9, Compose::add).save(14).step(2).without_keep();
  plan.jump(0, 20, Compose::last).save(15).step(0).jump(0, 20, Compose::zero).save(16).step(3).save(12).step(1);
  plan.step(2).without_keep().save(24).jump(1, 1).save(12);
  plan.chain(17, true).jump(1, 1, Compose::add).jump(2, 0).jump(0, 20);
  plan.chain(1).step(1).without_keep().step(1).step(1).without_keep().step(1);
  plan.chain(18, false, 1).jump(4, 9).step(2).step(6, 5).save(19).jump(3, 9).save(20).step(1).without_keep();
  plan.chain(13, false, 1).jump(4, 9).save(14);
  plan.chain(22, false, 1).jump(0, 20, Compose::last).step(2);  // of NaN nothing stays
  plan.chain(23, false, 1).jump(0, 20, Compose::zero).step(2);
  plan.chain(19, false, 2).jump(5, 6, Compose::add).step(1).chain(21, true, 2).jump(5, 6).step(1);
  layer.run(plan, before.tokens());
  Plan after, without_rows;
  after.chain(25, true).step(7, 0).chain(2).step(8, 1).chain(26, true, 1).jump(0, 7).jump(4, 9).step(1);
  layer.run(after, before.tokens() + plan.tokens());
  without_rows.chain(26).jump(0, 7).jump(1, 8).save(25);
  layer.run(without_rows, dims.T);
  layer.check("every kind of item");
}

// More items in a chain than a kernel may hold at a time, wherever its part of them ends.
void many_items(Context& c, const FamilyReference& family, const Dims& shape) {
  constexpr int32_t kSegments = 8, kRequests = 4, kSaved = kSegments + kRequests;
  const int64_t n = 5;
  Plan plan;
  for (int32_t i = 0; i < kSegments; ++i) plan.chain(i, true).step(n, i);
  for (int32_t r = 0; r < kRequests; ++r) {
    plan.chain(kSegments + r, true, 1);
    for (int32_t i = 0; i < r; ++i) plan.step(i % 2);
    for (int32_t i = 0; i < (r == 0 ? 80 : 40); ++i) {
      plan.jump(i % kSegments, n).step(i % 3);
      if (i % 12 == 8) plan.without_keep();
      plan.jump((3 * i + 1) % kSegments, n, i % 16 == 9 ? Compose::add : Compose::transfer);
      if (i == 32 + r) plan.save(kSaved + r);
      plan.step(0);
    }
  }
  const Dims dims = with_tokens(shape, plan.tokens());
  Layer layer(c, family, dims, make_inputs(family, dims, Style::random, kSeed),
              {.states = kSaved + kRequests, .operators = kSegments});
  layer.run(plan);
  layer.check("more than 128 items");
}

// Slots far into their pools: beyond 2³¹ elements with --thorough, else beyond 2¹⁶ slots.
void far(Context& c, const FamilyReference& family, const Dims&) {
  const int64_t d = c.thorough ? 128 : 2;
  const auto before = static_cast<int32_t>(c.thorough ? (int64_t{1} << 31) / (d * d) : 70000);
  const Dims dims = family.fit({9 + 3 + 2, 1, 1, d, d, 2});
  for (const bool states : {true, false}) {
    Layer layer(c, family, dims, make_inputs(family, dims, Style::random, kSeed),
                {.states = 3,
                 .operators = 1,
                 .states_before = states ? before : 0,
                 .operators_before = states ? 0 : before});
    for (const int i : {0, 1}) layer.set_state(i, make_state(family, dims, kSeed + i));
    layer.run(Plan().chain(0).step(9, 0).chain(1, false, 1).step(3).jump(0, 9).save(2).step(2).without_keep());
    layer.check(str(before, " slots before"));
  }
}

// A token of each chain at a time, beside longer chains and without them, slots in no order and now and then idle.
void decode(Context& c, const FamilyReference& family, const Dims& shape) {
  constexpr int32_t kChains = 5;
  const Dims dims = with_tokens(shape, 5 + 3 + 12 + 5);
  for (const Style style : {Style::random, Style::no_decay, Style::strong_decay, Style::equal_keys, Style::zero_keys}) {
    Layer layer(c, family, dims, make_inputs(family, dims, style, kSeed),
                {.states = kChains + 1, .repeated = is_repeated(style)});
    for (int32_t slot = 1; slot <= kChains; ++slot) layer.set_state(slot, make_state(family, dims, kSeed + slot));
    int64_t first = 0;
    for (int32_t i = 0; i < 4; ++i) {
      Plan plan;
      if (i == 2) plan.chain(kChains).step(7);
      for (int32_t n = 0; n < kChains; ++n)
        if (const int32_t slot = (2 * n + i) % kChains; i != 1 || slot < 3)
          plan.chain(slot, i == 0 && slot == 0).step(1);
      layer.run(plan, first);
      first += plan.tokens();
    }
    layer.check(str("token by token, ", name_of(style)));
  }
}

// The inputs with gates, writes and keys at their limits by turns: log decays of 0, −100 and between them, writes of 0,
// 1 and the most, keys of zero and the one before once more.
Inputs at_limits(const FamilyReference& family, const Dims& dims, Inputs inputs) {
  constexpr double kLogDecays[] = {0, -1e-3, -100, -0.5, 0, -20, -1}, kWrites[] = {0, 1, 1e9, 0.3};
  for (const InputSpec& spec : family.inputs(dims)) {
    if (!spec.per_token) continue;
    Array& x = inputs.at(spec.name);
    const int64_t n = x.product(1);
    for (int64_t t = 0; t < dims.T; ++t)
      for (int64_t i = 0; i < n; ++i) {
        double& element = x.data[t * n + i];
        const double log_decay = kLogDecays[(t + i) % 7];
        switch (spec.role) {
          case Role::log_decay:
            element = log_decay;
            break;
          case Role::decay:
            element = std::exp(log_decay);
            break;
          case Role::step:
            element = -log_decay;
            break;
          case Role::write:
            element = std::min(kWrites[(t + i) % 4], spec.max);
            break;
          case Role::key:
          case Role::unit_key:
          case Role::unit_value:
            if (t % 5 == 3) element = 0;
            if (t % 5 == 1) element = x.data[(t - 1) * n + i];
            break;
          default:
            break;
        }
      }
  }
  return inputs;
}

void limits(Context& c, const FamilyReference& family, const Dims& shape) {
  const Dims dims = with_tokens(shape, 5 + 68 + 1 + 1 + 3);
  Layer layer(c, family, dims, at_limits(family, dims, make_inputs(family, dims, Style::random, kSeed)),
              {.states = 2, .operators = 1});
  for (const int i : {0, 1}) layer.set_state(i, make_state(family, dims, kSeed + i));
  layer.run(Plan().chain(0).step(5).step(68, 0).step(1).chain(1, false, 1).step(1).jump(0, 68).step(3));
  layer.check("gates and writes at their limits");
}

// Keys carry RoPE: the segment was built at position 0 and is reused further on, twice by one chain; so far on that
// angles computed in float32 are wrong.
void relocation(Context& c, const FamilyReference& family, const Dims& shape) {
  const int64_t h = 3, n = 33;
  const Dims dims = with_tokens(shape, n + h + 9 + 2 * 3);
  const bool quotient = family.traits().readout == Readout::normalised;  // of U alone z may be next to nothing
  const Rope half{.share = 2, .theta = 1e6};
  for (const auto& [shift, rope] :
       {std::pair<int64_t, Rope>{137, {}}, {40009, {}}, {300007, {}}, {137, half}, {300007, half}}) {
    if (rope.share > 1 && has_position(family, dims)) continue;
    std::vector<int64_t> positions(n);
    std::iota(positions.begin(), positions.end(), 0);
    for (int64_t t = 0; t < h; ++t) positions.push_back(shift + t);
    for (int64_t t = 0; t < 9; ++t) positions.push_back(shift + 2 * n + t);
    for (const int chain : {0, 1})
      for (int64_t t = 0; t < 3; ++t) positions.push_back(shift + chain + n + t);
    const Inputs inputs = make_inputs(family, dims, Style::random, kSeed);
    Layer layer(c, family, dims, at_positions(family, dims, inputs, positions, rope),
                {.states = 6, .operators = 1, .rope = rope});
    for (const int32_t slot : {1, 2, 3}) layer.set_state(slot, make_state(family, dims, kSeed + slot));
    Plan plan;
    plan.chain(0, true).step(h).step(n - h, 0);
    plan.chain(1, false, 1).step(h).jump(0, n - h, Compose::transfer, shift).save(4);
    plan.jump(0, n - h, Compose::transfer, shift + n).step(9).jump(0, n - h).save(5);
    plan.chain(2, false, 1).jump(0, n - h, Compose::add, shift).step(3);
    plan.chain(3, false, 1).jump(0, n - h, quotient ? Compose::add : Compose::last, shift + 1).step(3);
    layer.run(plan);
    layer.check(str("moved by ", shift, rope.share > 1 ? ", half of the dims" : ""));
  }
}

// Rows that are columns of wider tensors, the first of which begin after others.
void strided_by(Context& c, const FamilyReference& family, const Dims& shape, int64_t gap, int64_t lead) {
  const Dims dims = with_tokens(shape, 2 + 65 + 1 + 9 + 3);
  Layer layer(c, family, dims, make_inputs(family, dims, Style::random, kSeed),
              {.states = 3, .operators = 1, .gap = gap, .lead = lead});
  for (const int i : {0, 1, 2}) layer.set_state(i, make_state(family, dims, kSeed + i));
  layer.run(Plan().chain(0).step(2).step(65, 0).chain(1).step(1).chain(2, false, 1).step(9).jump(0, 65).step(3));
  layer.check(str("rows apart by ", gap, ", from ", lead));
}

void strided(Context& c, const FamilyReference& family, const Dims& shape) { strided_by(c, family, shape, 5, 2); }

// The layer's input added to its outputs, as Mamba does.
void skip(Context& c, const FamilyReference& family, const Dims& shape) {
  const Dims dims = with_tokens(shape, 20 + 1 + 3 + 70 + 2 + 1);
  Layer layer(c, family, dims, make_inputs(family, dims, Style::random, kSeed),
              {.states = 3, .operators = 1, .skip = true});
  for (const int i : {0, 1, 2}) layer.set_state(i, make_state(family, dims, kSeed + i));
  Plan plan;
  plan.chain(0).step(20, 0).chain(1).step(1);
  plan.chain(2, false, 1).step(3).jump(0, 20).step(70).jump(0, 20).step(2).without_keep().step(1);
  layer.run(plan);
  layer.check("skip · v");
}

// Heads as wide as models have them, which kernels for tensor cores ask for.
void wide(Context& c, const FamilyReference& family, const Dims&) {
  const Dims half = family.fit({0, 1, 2, 64, 32, 2}), whole = family.fit({0, 1, 1, 128, 128, 2});
  lengths(c, family, half);
  neighbours(c, family, half);
  fresh(c, family, half);
  items(c, family, half);
  many_items(c, family, half);
  decode(c, family, half);
  limits(c, family, half);
  for (const int64_t lead : {0, 3}) strided_by(c, family, half, 16, lead);
  shapes_of(c, family, {{67, 1, 3, 64, 48, 2}, {40, 2, 2, 128, 80, 2}, {35, 1, 6, 64, 144, 2}, {4, 1, 1, 128, 16, 2}});
  if (is_mamba2(family)) skip(c, family, half);
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
    add("walk", walk);
    add("items", items);
    add("many_items", many_items);
    add("far", far);
    add("decode", decode);
    add("limits", limits);
    if (traits.relocatable) add("relocation", relocation);
    add("strided", strided);
    if (is_mamba2(*family)) add("skip", skip);
    if (traits.readout == Readout::plain && traits.side == Side::key &&
        (traits.decay == Decay::none || traits.decay == Decay::scalar || traits.family == Family::gla ||
         traits.family == Family::kda))
      add("wide", wide);
    add("long", long_prompt);
    for (const Fault& fault : twin.faults)
      add(fault.name,
          [run = fault.run](Context& c, const FamilyReference& f, const Dims&) { run(c, f); });
  }
  return cases;
}

}  // namespace hypic::conformance
