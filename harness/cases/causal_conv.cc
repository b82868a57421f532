// The causal convolution over chains, alone and with what conv_gates makes of it: a plain loop over everything that
// precedes a row in prompt order, in float64.
#include <algorithm>
#include <cmath>
#include <map>

#include "core/check.h"
#include "harness/cases/layer.h"
#include "harness/cases/op_cases.h"
#include "harness/cases/oracle.h"

namespace hypic::conformance {
namespace {

constexpr double kGarbage = 1e4;

double activated(double x, Activation activation) {
  if (activation == Activation::identity) return x;
  return (activation == Activation::silu ? x : 1) / (1 + std::exp(-x));
}

using Rows = std::vector<reference::Vector>;

struct ConvSetup {
  int64_t channels = 8;  // whole pieces of 16 bytes
  int64_t width = 4;
  int32_t states = 1;
  int32_t operators = 1;
  Activation activation = Activation::silu;
  bool bias = false;
  int64_t gap = 0, lead = 0;
  // conv_gates: the channels begin with so many heads of q and of k, which are normalised.
  int64_t key_heads = 0, key_dim = 0;
  int64_t decay_dim = 0;  // 0: a decay of each head, else one of so many channels of it
};

constexpr double kL2Eps = 1e-3;
constexpr int64_t kGateHeads = 3;  // of conv_gates

// The operation over forwards, and what it must give. Slots begin with garbage.
class Conv {
 public:
  Conv(Context& c, int64_t rows, const ConvSetup& setup)
      : c_(c), setup_(setup), draw_(71), pools_(c.backend) {
    const int64_t C = setup.channels, W = setup.width;
    const auto drawn = [&](std::vector<int64_t> shape) {
      return rounded(draw_.normals(std::move(shape)), c.compute());
    };
    x_ = drawn({rows, C});
    w_ = drawn({C, W});
    if (setup.bias) bias_ = drawn({C});
    window_ = pools_.inout("window", Array({setup.states, W - 1, C}, kGarbage), c.compute());
    tail_ = pools_.inout("tail", Array({setup.operators, W - 1, C}, kGarbage), c.compute());
  }

  // The window that a chain which is not fresh begins with.
  void set_window(int32_t slot) {
    const Array values = rounded(draw_.normals({setup_.width - 1, setup_.channels}), c_.compute());
    if (setup_.width > 1) put(c_.backend, window_.at(slot), values);
    Rows& rows = windows_[slot] = {};
    for (int64_t i = 0; i + 1 < setup_.width; ++i) rows.push_back(values.row(i));
  }

  Array run(const std::string& what, const Plan& plan, int64_t first = 0) {
    const int64_t R = plan.tokens(), C = setup_.channels;
    Arena arena(c_.backend);
    Array x({R, C});
    for (int64_t r = 0; r < R; ++r) x.set_row(x_.row(first + r), r);
    CausalConvArgs args{.x = arena.input("x", x, c_.compute(), setup_.gap, setup_.lead),
                        .w = arena.input("w", w_, c_.compute()),
                        .activation = setup_.activation,
                        .window = window_,
                        .tail = tail_,
                        .out = arena.output("out", {R, C}, c_.compute(), setup_.gap, setup_.lead)};
    if (setup_.bias) args.bias = arena.input("bias", bias_, c_.compute());
    const ChainTable table = plan.table(1);
    table.check(setup_.states, setup_.operators, 1);
    c_.backend.begin(table);
    const Array want = expect(plan, x);
    if (setup_.key_heads > 0)
      run_gates(what, arena, args, want);
    else
      c_.backend.causal_conv(args);
    const Array got = arena.read(args.out);
    const int64_t keys = 2 * setup_.key_heads * setup_.key_dim;  // conv_gates leaves anything there
    c_.compare(what + ", outputs", columns(got, keys, C), columns(want, keys, C), 0);
    check_slots(what);
    c_.unharmed(what, arena);
    c_.unharmed(what, pools_);
    return got;
  }
  Array window() const { return pools_.read(window_); }

 private:
  // conv_gates, and the comparison of what it gives beside the convolution.
  void run_gates(const std::string& what, Arena& arena, const CausalConvArgs& conv, const Array& want) {
    const int64_t R = want[0], H = setup_.key_heads, D = setup_.key_dim;
    const auto drawn = [&](std::vector<int64_t> shape, DType dtype) {
      return rounded(draw_.normals(std::move(shape)), dtype);
    };
    const int64_t n = std::max<int64_t>(setup_.decay_dim, 1);
    std::vector<int64_t> decays = {R, kGateHeads}, biases = {kGateHeads};
    if (setup_.decay_dim > 0)
      for (std::vector<int64_t>* shape : {&decays, &biases}) shape->push_back(n);
    const Array alpha = drawn(decays, c_.compute()), logit = drawn({R, kGateHeads}, c_.compute()),
                A_log = drawn({kGateHeads}, c_.state()), dt_bias = drawn(biases, c_.state());
    const Tensor q = arena.output("q", {R, H, D}, c_.compute()), k = arena.output("k", {R, H, D}, c_.compute()),
                 g = arena.output("g", decays, c_.state()),
                 beta = arena.output("beta", {R, kGateHeads}, c_.state());
    c_.backend.conv_gates({.conv = conv,
                           .key_heads = static_cast<int>(H),
                           .key_dim = static_cast<int>(D),
                           .l2_eps = kL2Eps,
                           .q = q,
                           .k = k,
                           .decay = {.x = arena.input("alpha", alpha, c_.compute(), setup_.gap, setup_.lead),
                                     .A_log = arena.input("A_log", A_log, c_.state()),
                                     .dt_bias = arena.input("dt_bias", dt_bias, c_.state()),
                                     .out = g},
                           .beta = {.x = arena.input("logit", logit, c_.compute(), setup_.gap, setup_.lead),
                                    .out = beta,
                                    .scale = 2}});
    Array want_g = alpha, want_beta = logit;
    for (int64_t r = 0; r < R; ++r)
      for (int64_t i = 0; i < kGateHeads * n; ++i) {
        double& x = want_g.data[r * kGateHeads * n + i];
        x = -std::exp(A_log(i / n)) * oracle::softplus(x + dt_bias.data[i]);
      }
    for (double& x : want_beta.data) x = 2 * oracle::sigmoid(x);
    c_.compare(what + ", g", arena.read(g), want_g, 0);
    c_.compare(what + ", beta", arena.read(beta), want_beta, 0);
    for (const bool is_k : {false, true}) {
      Array heads = columns(want, is_k ? H * D : 0, is_k ? 2 * H * D : H * D);
      heads.shape = {R, H, D};
      c_.compare(what + (is_k ? ", k" : ", q"), arena.read(is_k ? k : q), oracle::l2_norm(heads, kL2Eps), 0);
    }
  }

  static Array columns(const Array& x, int64_t begin, int64_t end) {
    Array out({x[0], end - begin});
    for (int64_t r = 0; r < x[0]; ++r)
      for (int64_t i = begin; i < end; ++i) out(r, i - begin) = x(r, i);
    return out;
  }

  // Everything before a row is in `past`, oldest first.
  Array expect(const Plan& plan, const Array& x) {
    Array out(x.shape);
    for (const Chain& chain : plan.chains()) {
      Rows past = chain.fresh ? Rows() : windows_.at(chain.state);
      for (int32_t i = chain.item_begin; i < chain.item_end; ++i) {
        const ChainItem& item = plan.items()[i];
        if (item.kind == ChainItem::Kind::jump) {
          for (const reference::Vector& row : last(tails_.at(item.op), item.span))
            past.push_back(row);
        } else {
          const Rows before = past;
          Rows span = item.op != kNone && item.span > 0 ? tails_.at(item.op) : Rows();
          for (int64_t r = item.begin; r < item.end; ++r) {
            past.push_back(x.row(r));
            span.push_back(x.row(r));
            out.set_row(convolved(past), r);
          }
          if (item.op != kNone) tails_[item.op] = span;
          if (!item.keep) past = before;
        }
        if (item.save != kNone) windows_[item.save] = past;
      }
      windows_[chain.state] = past;
    }
    return out;
  }

  reference::Vector convolved(const Rows& past) const {
    reference::Vector out(0.0, setup_.channels);
    for (int64_t c = 0; c < setup_.channels; ++c) {
      double sum = setup_.bias ? bias_(c) : 0;
      for (int64_t j = 0; j < setup_.width; ++j) {
        const int64_t from = static_cast<int64_t>(past.size()) - setup_.width + j;
        if (from >= 0) sum += w_(c, j) * past[from][c];
      }
      out[c] = activated(sum, setup_.activation);
    }
    return out;
  }

  // At most W − 1 rows from the end, and at most `count`.
  Rows last(const Rows& rows, int64_t count) const {
    const int64_t n = std::min({count, setup_.width - 1, static_cast<int64_t>(rows.size())});
    return Rows(rows.end() - n, rows.end());
  }

  void check_slots(const std::string& what) {
    const int64_t rows = setup_.width - 1;
    Array want = window();
    for (const auto& [slot, past] : windows_) {
      const Rows kept = last(past, rows);
      for (int64_t i = 0; i < rows; ++i) {  // zero where nothing came before
        const int64_t from = i - (rows - static_cast<int64_t>(kept.size()));
        want.set_row(from >= 0 ? kept[from] : reference::Vector(0.0, setup_.channels), slot, i);
      }
    }
    for (int32_t slot = 0; slot < setup_.states; ++slot)
      if (!windows_.contains(slot))
        for (int64_t i = 0; i < rows; ++i)
          want.set_row(
              reference::Vector(rounded(Array({1}, kGarbage), c_.compute())(0), setup_.channels),
              slot, i);
    c_.identical(what + ", windows", window(), want);
    Array tails = pools_.read(tail_);
    Array want_tails = tails;  // rows before the span's own are anyone's
    for (const auto& [slot, span] : tails_) {
      const Rows kept = last(span, rows);
      for (size_t i = 0; i < kept.size(); ++i)
        want_tails.set_row(kept[i], slot, rows - static_cast<int64_t>(kept.size() - i));
    }
    c_.identical(what + ", tails", tails, want_tails);
  }

  Context& c_;
  const ConvSetup setup_;
  Draw draw_;
  Arena pools_;
  Array x_, w_, bias_;
  Tensor window_, tail_;
  std::map<int32_t, Rows> windows_, tails_;  // whole histories by slot
};

void sizes(Context& c) {
  for (const int64_t width : {1, 2, 3, 4, 5})
    for (const int64_t channels : {1, 6, 64, 65, 1032}) {
      Conv conv(c, 9, {.channels = channels, .width = width});
      conv.run(str(channels, " channels, ", width, " wide"), Plan().chain(0, true).step(9));
    }
}

void activations(Context& c) {
  for (const Activation a : {Activation::identity, Activation::silu, Activation::sigmoid})
    for (const bool bias : {false, true}) {
      Conv conv(c, 20, {.activation = a, .bias = bias});
      conv.run(str("activation ", static_cast<int>(a), bias ? ", bias" : ""),
               Plan().chain(0, true).step(20));
    }
}

// Chains of every length up to 69, from windows of their own or fresh over garbage, empty ones too.
void lengths(Context& c) {
  Conv conv(c, 70 * 69 / 2, {.states = 70});
  Plan plan;
  for (int32_t i = 0; i < 70; ++i) {
    const int32_t T = i * 37 % 70;
    if (T % 2) conv.set_window(i);
    plan.chain(i, T % 2 == 0).step(T);
  }
  conv.run("lengths 0 to 69", plan);
}

// Fault 12: a chunk shorter than the window mixes old rows into the new one; a slot of garbage is
// not read by a fresh chain.
void fault_chunks(Context& c) {
  for (const int64_t chunk : {1, 2, 3, 64}) {
    Conv carried(c, 3 * chunk, {});
    carried.set_window(0);
    for (int64_t i = 0; i < 3; ++i)
      carried.run(str("chunk ", i, " of ", chunk), Plan().chain(0).step(chunk), i * chunk);
    Conv fresh(c, 2 * chunk, {});
    fresh.run(str("fresh chunk of ", chunk), Plan().chain(0, true).step(chunk));
    fresh.run(str("the next of ", chunk), Plan().chain(0).step(chunk), chunk);
  }
}

// Whole = cut anywhere.
void splits(Context& c) {
  Conv whole(c, 66, {});
  const Array want = whole.run("whole", Plan().chain(0, true).step(66));
  for (const int64_t cut : {0, 1, 2, 63, 64, 66}) {
    Conv parts(c, 66, {});
    parts.run("first part", Plan().chain(0, true).step(cut));
    const Array rest = parts.run("second part", Plan().chain(0).step(66 - cut), cut);
    Array end({66 - cut, 8});
    for (int64_t r = cut; r < 66; ++r) end.set_row(want.row(r), r - cut);
    c.same(str("cut at ", cut), rest, end, 0);
  }
}

// Segments alone leave the ends of their spans, also in parts and shorter than the window; a chain
// that jumps over them goes on from there.
void jumps_of(Context& c, ConvSetup setup) {
  setup.states = 4;
  setup.operators = 2;
  for (const int64_t span : {0, 1, 2, 3, 30}) {
    Conv conv(c, 3 + span + 2 + 14, setup);
    conv.run(str(setup.width, " wide, segment with a span of ", span),
             Plan().chain(0, true).step(3).step(span - span / 2, 0).save(3));
    if (span / 2 > 0)
      conv.run("its second part", Plan().chain(0).step(span / 2, 0, span - span / 2),
               3 + span - span / 2);
    conv.set_window(1);
    conv.run(str(setup.width, " wide, jump over ", span),
             Plan()
                 .chain(1)
                 .step(2)
                 .jump(0, span)
                 .step(1)
                 .save(2)
                 .jump(0, span)
                 .step(4)
                 .without_keep()
                 .step(7),
             3 + span);
    conv.run(str(setup.width, " wide, no row"), Plan().chain(1).jump(0, span).save(3));
  }
}

// Windows that reach back over many short items: steps of no row or few, kept or not, short spans jumped over, slots
// saved to once and again, after steps and after jumps, on two levels; chains without an item.
void short_items_of(Context& c, ConvSetup setup) {
  setup.states = 18;
  setup.operators = 5;
  Conv conv(c, 30, setup);
  for (const int32_t slot : {0, 1, 2, 13, 15}) conv.set_window(slot);
  Plan plan;
  for (int32_t op = 0; op < 4; ++op)
    plan.chain(op, op == 3).step(op % 2).step(op, op).save(4 + op).step(0).save(op == 2 ? op : 4 + op);
  plan.chain(13).step(3, 4).without_keep().step(1).without_keep().save(16).chain(14, true).chain(15);
  plan.chain(8, true, 1).jump(0, 0).jump(1, 1).step(0);
  for (int32_t i = 0; i < 12; ++i) {
    plan.jump(i % 4, i % 4);
    if (i % 4 == 3) plan.save(i == 7 ? 8 : 11);
    plan.step(i % 3);
    if (i % 4 == 1) plan.without_keep();
    if (i % 5 == 2) plan.save(9);
    if (i == 7) plan.save(8);
  }
  plan.chain(1, false, 1).step(1).without_keep().jump(2, 2).step(0).save(10).step(2).jump(4, 3).save(12);
  conv.run(str(setup.width, " wide, many short items"), plan);
}

void jumps(Context& c) {
  for (const int64_t width : {2, 3, 4, 5}) jumps_of(c, {.width = width});
}

void short_items(Context& c) {
  for (const int64_t width : {2, 3, 4, 5}) short_items_of(c, {.width = width});
}

// More items in a chain than a kernel may hold at a time.
void many_items(Context& c) {
  Conv conv(c, 2 + 150, {.states = 4, .operators = 1});
  Plan plan;
  plan.chain(0, true).step(2, 0).chain(1, true, 1);
  for (int32_t i = 0; i < 150; ++i) {
    plan.jump(0, i % 3).step(1);
    if (i % 7 == 3) plan.without_keep();
    if (i == 140) plan.save(2);
  }
  conv.run("300 items", plan);
}

// More rows than one axis of a grid of blocks may have.
void many_rows(Context& c) {
  Conv conv(c, 70000, {.states = 2});
  conv.set_window(1);
  conv.run("70000 rows", Plan().chain(0, true).step(69998).chain(1).step(2));
}

// What conv_gates fuses goes through chains as the convolution alone does.
void gates(Context& c) {
  for (const ConvSetup& setup :
       {ConvSetup{.channels = 31, .bias = true, .gap = 3, .lead = 1, .key_heads = 2, .key_dim = 6},
        ConvSetup{.channels = 56, .key_heads = 2, .key_dim = 8, .decay_dim = 4},
        ConvSetup{.channels = 160, .bias = true, .gap = 16, .key_heads = 1, .key_dim = 64}}) {
    jumps_of(c, setup);
    short_items_of(c, setup);
  }
}

// Fault 11: x is the columns [D, 2D) of a tensor of 3D, or its rows lie an odd number apart.
void fault_strided(Context& c) {
  for (const auto& [gap, lead] : {std::pair<int64_t, int64_t>{128, 64}, {13, 0}, {8, 0}, {16, 3}}) {
    Conv conv(c, 67, {.channels = 64, .gap = gap, .lead = lead});
    conv.set_window(0);
    conv.run(str("rows ", 64 + gap, " apart"), Plan().chain(0).step(67));
  }
}

// Chains of a batch: alone they give the same, and garbage in one stays there.
void neighbours(Context& c) {
  Conv batch(c, 40, {.states = 3}), alone(c, 40, {.states = 3});
  for (Conv* conv : {&batch, &alone}) conv->set_window(1);
  const Array all =
      batch.run("batch", Plan().chain(0, true).step(5).chain(1).step(30).chain(2, true).step(5));
  const Array one = alone.run("alone", Plan().chain(1).step(30), 5);
  Array want({30, 8});
  for (int64_t r = 0; r < 30; ++r) want.set_row(all.row(5 + r), r);
  c.same("alone and in a batch", one, want, 0);
}

}  // namespace

std::vector<Case> causal_conv_cases() {
  const auto conv = [](const char* name, void (*run)(Context&)) {
    return Case{str("causal_conv/", name), "causal_conv", "", run};
  };
  return {conv("sizes", sizes),
          conv("activations", activations),
          conv("lengths", lengths),
          conv("fault_12_chunks", fault_chunks),
          conv("splits", splits),
          conv("jumps", jumps),
          conv("short_items", short_items),
          conv("many_items", many_items),
          conv("many_rows", many_rows),
          conv("fault_11_strided", fault_strided),
          conv("neighbours", neighbours),
          {"conv_gates/chains", "conv_gates", "", gates}};
}

}  // namespace hypic::conformance
