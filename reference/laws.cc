#include "reference/laws.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <random>

#include "reference/families/short_conv.h"

namespace hypic::reference {
namespace {

// Random numbers
// -----------------------------------------------------------------------------------------

// The same numbers on every platform, unlike the distributions of <random>.
class Random {
 public:
  explicit Random(uint64_t seed) : bits_(seed) {}
  double uniform(double low, double high) { return low + (high - low) * unit(); }
  double log_uniform(double low, double high) {
    return std::exp(uniform(std::log(low), std::log(high)));
  }
  double normal() {
    return std::sqrt(-2 * std::log(1 - unit())) * std::cos(2 * std::numbers::pi * unit());
  }
  int64_t integer(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(bits_() % static_cast<uint64_t>(high - low + 1));
  }

 private:
  double unit() { return static_cast<double>(bits_() >> 11) * 0x1p-53; }
  std::mt19937_64 bits_;
};

bool is_key(Role role) {
  return role == Role::key || role == Role::unit_key || role == Role::unit_value;
}

bool is_slow(Style style) {
  return style == Style::slow || style == Style::equal_keys || style == Style::repeated;
}

// Log decays of a tensor whose leading axis is `tokens` long; every other entry has its own memory
// length.
void fill_log_decays(Array& x, int64_t tokens, Style style, Random& random) {
  const int64_t entries = tokens ? static_cast<int64_t>(x.data.size()) / tokens : 0;
  std::vector<double> memory(entries);
  for (double& m : memory) m = random.log_uniform(64, 65536);
  for (int64_t t = 0; t < tokens; ++t)
    for (int64_t e = 0; e < entries; ++e) {
      double& g = x.data[t * entries + e];
      if (style == Style::no_decay)
        g = 0;
      else if (style == Style::strong_decay)
        g = tokens > 1 && t == tokens / 2 ? -100 : -20;
      else if (is_slow(style))
        g = -random.uniform(0.5, 1.5) / memory[e];
      else
        g = -random.log_uniform(1e-3, 1);
    }
}

// Rows over the last axis: normal, of length about 1 or of length 1.
void fill_keys(Array& x, bool unit_length, Random& random) {
  const int64_t d = x.last();
  for (size_t at = 0; at < x.data.size(); at += d) {
    double square = 0;
    for (int64_t j = 0; j < d; ++j) {
      x.data[at + j] = random.normal();
      square += x.data[at + j] * x.data[at + j];
    }
    for (int64_t j = 0; j < d; ++j) x.data[at + j] /= std::sqrt(unit_length ? square : d);
  }
}

// Every block of `size` elements becomes a copy of the first.
void repeat_first(Array& x, int64_t size) {
  for (size_t i = size; i < x.data.size(); ++i) x.data[i] = x.data[i - size];
}

Array make_input(const InputSpec& spec, Style style, Random& random) {
  Array x(spec.shape);
  const auto fill = [&](auto draw) {
    for (double& element : x.data) element = draw();
  };
  const auto decays = [&](double sign) {
    fill_log_decays(x, spec.per_token ? x[0] : 1, style, random);
    for (double& element : x.data) element *= sign;
  };
  switch (spec.role) {
    case Role::query:
    case Role::value:
    case Role::logit:
    case Role::weight:
      fill([&] { return random.normal(); });
      break;
    case Role::key:
      fill_keys(x, false, random);
      break;
    case Role::unit_key:
    case Role::unit_value:
      fill_keys(x, true, random);
      break;
    case Role::log_decay:
      decays(1);
      break;
    case Role::slope:
      decays(-1);
      break;
    case Role::decay:
      decays(1);
      for (double& element : x.data) element = std::exp(element);
      break;
    case Role::rate:  // the steps below hold what varies from token to token
      if (style == Style::strong_decay)
        fill([] { return -1; });
      else
        decays(1);
      break;
    case Role::step:
      if (style == Style::strong_decay)
        decays(-1);
      else
        fill([&] { return random.uniform(0.5, 1.5); });
      break;
    case Role::write:
      fill([&] { return style == Style::equal_keys ? spec.max : random.uniform(0, spec.max); });
      break;
    case Role::position:
      break;
  }
  if (is_key(spec.role)) {
    if (style == Style::zero_keys) fill([] { return 0; });
    if (style == Style::equal_keys) repeat_first(x, x.product(x.shape.size() - 2));
  }
  if (style == Style::repeated && spec.per_token) repeat_first(x, x.product(1));
  return x;
}

// Inputs of chosen tokens
// ---------------------------------------------------------------------------------

std::vector<int64_t> range(int64_t begin, int64_t end) {
  std::vector<int64_t> tokens;
  for (int64_t t = begin; t < end; ++t) tokens.push_back(t);
  return tokens;
}

struct TokensOf {
  const Inputs* inputs;
  std::vector<int64_t> tokens;
};

Inputs gather(const FamilyReference& family, const Dims& dims, const std::vector<TokensOf>& parts) {
  Inputs out = *parts.front().inputs;
  for (const InputSpec& spec : family.inputs(dims)) {
    if (!spec.per_token) continue;
    Array& to = out.at(spec.name);
    const int64_t size = to.product(1);
    to.data.clear();
    to.shape[0] = 0;
    for (const TokensOf& part : parts) {
      const std::vector<double>& from = part.inputs->at(spec.name).data;
      for (const int64_t t : part.tokens)
        to.data.insert(to.data.end(), from.begin() + t * size, from.begin() + (t + 1) * size);
      to.shape[0] += static_cast<int64_t>(part.tokens.size());
    }
  }
  return out;
}

// The same tokens with RoPE on queries and keys, the first at position `start`.
Inputs at_position(const FamilyReference& family, const Dims& dims, Inputs inputs, int64_t start) {
  for (const InputSpec& spec : family.inputs(dims))
    if (spec.role == Role::position) {
      for (int64_t t = 0; t < dims.T; ++t) inputs.at(spec.name)(t) = static_cast<double>(start + t);
      return inputs;  // the definition rotates
    }
  for (const InputSpec& spec : family.inputs(dims)) {
    if (spec.role != Role::query && spec.role != Role::key && spec.role != Role::unit_key) continue;
    Array& x = inputs.at(spec.name);
    const int64_t rows = dims.T ? x.product(0) / x.last() / dims.T : 0;
    for (int64_t t = 0; t < dims.T; ++t)
      for (int64_t r = 0; r < rows; ++r) {
        double* row = x.data.data() + (t * rows + r) * x.last();
        Vector moved(row, x.last());
        rotate(moved, static_cast<double>(start + t), rotary_dim_of(x.last()), kRopeTheta);
        std::copy(std::begin(moved), std::end(moved), row);
      }
  }
  return inputs;
}

// R S: RoPE by `shift` on the key axis of a family's own state.
Array rotated_state(Array S, int64_t shift) {
  for (int64_t h = 0; h < S[0]; ++h)
    for (int64_t j = 0; j < S[2]; ++j) {
      Vector column(S[1]);
      for (int64_t i = 0; i < S[1]; ++i) column[i] = S(h, i, j);
      rotate(column, static_cast<double>(shift), rotary_dim_of(S[1]), kRopeTheta);
      for (int64_t i = 0; i < S[1]; ++i) S(h, i, j) = column[i];
    }
  return S;
}

// Errors
// --------------------------------------------------------------------------------------------------
//
// An error is the Frobenius norm of a difference over a norm of what the two sides were computed
// from, head by head: float64 rounding cannot be below eps times that, and a wrong formula is far
// above it.
//   state      the largest ‖S_t‖ on the way, the initial state included
//   operator   the products and sums of the norms of the factors that it was composed of
//   output     |q| ‖S_t‖ times what the readout makes of it (readout_floor)

double norm(const double* x, int64_t n) {
  double square = 0;
  for (int64_t i = 0; i < n; ++i) square += x[i] * x[i];
  return std::sqrt(square);
}

double distance(const double* x, const double* y, int64_t n) {
  double square = 0;
  for (int64_t i = 0; i < n; ++i) square += (x[i] - y[i]) * (x[i] - y[i]);
  return std::sqrt(square);
}

// 0/0 is no error; what is not finite is an infinite one.
double relative(double difference, double floor) {
  if (difference == 0) return 0;
  return std::isfinite(difference / floor) ? difference / floor
                                           : std::numeric_limits<double>::infinity();
}

Vector head_norms(const Array& x) {
  Vector norms(x[0]);
  for (int64_t h = 0; h < x[0]; ++h) norms[h] = norm(&x.data[h * x.product(1)], x.product(1));
  return norms;
}

Vector larger(Vector a, const Vector& b) {
  for (size_t i = 0; i < a.size(); ++i) a[i] = std::max(a[i], b[i]);
  return a;
}

double head_error(const Array& got, const Array& want, const Vector& floor) {
  HYPIC_CHECK(got.shape == want.shape);
  double worst = 0;
  for (int64_t h = 0; h < want[0]; ++h) {
    const int64_t size = want.product(1);
    worst = std::max(worst,
                     relative(distance(&got.data[h * size], &want.data[h * size], size), floor[h]));
  }
  return worst;
}

// The definition
// ------------------------------------------------------------------------------------------

Array zero_state(const FamilyReference& family, const Dims& dims) {
  return Array(family.state_shape(dims));
}

// The end state of tokens [begin, end) from S.
Array end_state(const FamilyReference& family, const Dims& dims, const Inputs& inputs,
                int64_t begin, int64_t end, Array S) {
  Array o({dims.T, dims.Hv, dims.dv});
  family.run(inputs, begin, end, S, o);
  return S;
}

// The recurrence token by token.
struct Trace {
  std::vector<Array> S;  // S[t]: after t tokens
  Array o;
  Vector floor;  // the largest norm of each head's states

  Trace(const FamilyReference& family, const Dims& dims, const Inputs& inputs, const Array& S0)
      : S{S0}, o({dims.T, dims.Hv, dims.dv}), floor(head_norms(S0)) {
    for (int64_t t = 0; t < dims.T; ++t) {
      Array next = S.back();
      family.run(inputs, t, t + 1, next, o);
      floor = larger(floor, head_norms(next));
      S.push_back(std::move(next));
    }
  }
};

// How large a rounding of q and of the states makes an output of one token and head.
double readout_floor(const FamilyReference& family, const TableInputs& table, const Trace& trace,
                     int64_t t, int64_t h) {
  const FamilyTraits& traits = family.traits();
  const int64_t row = (t + 1) * table.rows_per_token - 1;
  const Vector q = table.scale * table.q.row(row, h / (table.v[1] / table.q[1]));
  const Array after = family.to_table_state(trace.S[t + 1]),
              before = family.to_table_state(trace.S[t]);
  const double q_norm = std::sqrt(dot(q, q)), S_norm = head_norms(after)[h];
  const Vector out = trace.o.row(t, h);
  const double o_norm = std::sqrt(dot(out, out));
  switch (traits.readout) {
    case Readout::plain:
      break;
    case Readout::bonus: {
      const Vector k = table.u.row(h) * table.k.row(row, h / (table.v[1] / table.k[1]));
      const Vector v = table.v.row(row, h);
      return q_norm * (head_norms(before)[h] + std::sqrt(dot(k, k) * dot(v, v)));
    }
    case Readout::normalised:
    case Readout::bounded: {  // a quotient: the error of numerator and divisor over the divisor
      double z = 0;
      for (int64_t i = 0; i < after[1]; ++i) z += q[i] * after(h, i, after[2] - 1);
      const double divisor =
          traits.readout == Readout::bounded ? std::max(std::abs(z), 1.0) : std::abs(z);
      return q_norm * S_norm * (1 + o_norm) / divisor;
    }
    case Readout::softmax:
      return S_norm * (1 + q_norm * S_norm);  // of logits with that error
  }
  double skip = 0;
  if (table.skip) {
    const Vector x = table.skip.row(t, h);
    skip = std::sqrt(dot(x, x));
  }
  return q_norm * S_norm + skip;
}

// The table
// -----------------------------------------------------------------------------------------------

// Operators with memory of their own, or a pool of them with a leading slot axis.
struct Pool {
  OperatorKind kind;
  Array log_scale, T, U;

  Pool(const FamilyTraits& traits, int64_t slots, int64_t H, int64_t dk, int64_t dv)
      : kind(operator_kind(traits.decay, traits.update)), U({slots, H, dk, dv}) {
    if (has_log_scale(traits.decay, traits.update)) log_scale = Array({slots, H});
    if (kind == OperatorKind::diagonal) T = Array({slots, H, dk});
    if (kind == OperatorKind::elementwise) T = Array({slots, H, dk, dv});
    if (kind == OperatorKind::dense) T = Array({slots, H, dk, dk});
  }

  TransferOperator view() {
    TransferOperator op{kind, {}, {}, {}};
    op.U = Tensor(U.data.data(), {U[0], U[1], U[2], U[3]});
    if (log_scale) op.log_scale = Tensor(log_scale.data.data(), {log_scale[0], log_scale[1]});
    if (T.shape.size() == 3) op.T = Tensor(T.data.data(), {T[0], T[1], T[2]});
    if (T.shape.size() == 4) op.T = Tensor(T.data.data(), {T[0], T[1], T[2], T[3]});
    return op;
  }
  TransferOperator slot(int64_t s) { return view().at(s); }

  Array U_of(int64_t s) const {
    Array out({U[1], U[2], U[3]});
    std::copy_n(U.data.begin() + s * U.product(1), U.product(1), out.data.begin());
    return out;
  }

  // By head: the norm of T without its scalar part, and the scalar part.
  double T_norm(int64_t s, int64_t h) const {
    if (!T) return 1;
    const int64_t size = T.product(2);
    return norm(&T.data[(s * T[1] + h) * size], size);
  }
  double log_scale_of(int64_t s, int64_t h) const { return log_scale ? log_scale(s, h) : 0; }
};

// One operator of a pool.
struct Slot {
  const Pool& pool;
  int64_t slot;
};

// got against want, where want is what `factors` compose to, the latest first: T = Π T_i, U = Σ
// (later T) U_i. A dense factor's own product began with I, and its differences with it.
double operator_error(const Slot& got, const Slot& want, const std::vector<Slot>& factors) {
  double worst = 0;
  const auto [H, U_size, T_size] =
      std::array{want.pool.U[1], want.pool.U.product(2), want.pool.T ? want.pool.T.product(2) : 0};
  for (int64_t h = 0; h < H; ++h) {
    double T_floor = 1, U_floor = 0, log_floor = 1,
           later = 1;  // later: the norm of the later T, scaled
    for (const auto& [pool, slot] : factors) {
      U_floor += later * norm(&pool.U.data[(slot * H + h) * U_size], U_size);
      const double identity = pool.kind == OperatorKind::dense ? std::sqrt(pool.U[2]) : 0;
      const double T = std::max(pool.T_norm(slot, h), identity);
      T_floor *= T;
      later *= std::exp(pool.log_scale_of(slot, h)) * T;
      log_floor += std::abs(pool.log_scale_of(slot, h));
    }
    const int64_t a = got.slot * H + h, b = want.slot * H + h;
    worst = std::max(
        {worst,
         relative(distance(&got.pool.U.data[a * U_size], &want.pool.U.data[b * U_size], U_size),
                  U_floor),
         relative(
             std::abs(got.pool.log_scale_of(got.slot, h) - want.pool.log_scale_of(want.slot, h)),
             log_floor)});
    if (T_size > 0)
      worst = std::max(worst, relative(distance(&got.pool.T.data[a * T_size],
                                                &want.pool.T.data[b * T_size], T_size),
                                       T_floor));
  }
  return worst;
}

double operator_error(const Slot& got, const Slot& want) {
  return operator_error(got, want, {want});
}

// Builds chain tables in tokens; rows follow.
class Chains {
 public:
  explicit Chains(int64_t rows_per_token) : rows_(rows_per_token) {}

  Chains& chain(int32_t level, int32_t state, bool fresh) {
    Chain chain;
    chain.level = level;
    chain.state = state;
    chain.fresh = fresh;
    chain.item_begin = chain.item_end = static_cast<int32_t>(table_.items.size());
    chain.row_begin = chain.row_end = table_.row_count();
    table_.chains.push_back(chain);
    return *this;
  }
  Chains& step(int64_t tokens, int32_t op = kNone, int64_t earlier_tokens = 0) {
    ChainItem item;
    item.begin = table_.row_count();
    item.end = static_cast<int32_t>(item.begin + tokens * rows_);
    item.op = op;
    item.span = static_cast<int32_t>(earlier_tokens);
    for (int32_t row = item.begin; row < item.end; ++row) {
      table_.tokens.push_back(0);
      table_.positions.push_back(row);
      table_.chain_of.push_back(static_cast<int32_t>(table_.chains.size()) - 1);
    }
    return add(item);
  }
  Chains& jump(int32_t op, int64_t span, int64_t shift = 0) {
    ChainItem item;
    item.kind = ChainItem::Kind::jump;
    item.op = op;
    item.span = static_cast<int32_t>(span);
    item.shift = static_cast<int32_t>(shift);
    return add(item);
  }
  const ChainTable& table() const { return table_; }

 private:
  Chains& add(const ChainItem& item) {
    table_.items.push_back(item);
    table_.chains.back().item_end = static_cast<int32_t>(table_.items.size());
    table_.chains.back().row_end = table_.row_count();
    return *this;
  }
  int64_t rows_;
  ChainTable table_;
};

// One layer in the table's terms: its inputs, state slots, operator pool and outputs.
class TableLayer {
 public:
  TableLayer(const FamilyReference& family, const Inputs& inputs, const TableOps& ops,
             int64_t states, int64_t operators)
      : inputs(family.to_table(inputs)),
        state({states, this->inputs.v[1], this->inputs.k.last(), this->inputs.v.last()}),
        pool(family.traits(), operators, state[1], state[2], state[3]),
        family_(family),
        ops_(ops) {}

  TableInputs inputs;
  Array state;  // [slots, Hv, d_k, d_v]
  Pool pool;

  Chains chains() const { return Chains(inputs.rows_per_token); }

  void set_state(int64_t slot, const Array& own) {
    const Array S = family_.to_table_state(own);
    std::copy(S.data.begin(), S.data.end(), state.data.begin() + slot * state.product(1));
  }
  Array own_state(int64_t slot) const {
    Array S({state[1], state[2], state[3]});
    std::copy_n(state.data.begin() + slot * state.product(1), state.product(1), S.data.begin());
    return family_.from_table_state(S);
  }

  // Runs the chains and returns the outputs by token, [tokens, Hv, d_o].
  Array run(const Chains& chains, bool rope = false) {
    const int64_t rows = inputs.v[0], d_o = inputs.output_dim(family_.traits());
    Array row_o({rows, state[1], d_o});
    LinearAttentionArgs args = inputs.args(family_.traits());
    args.state = Tensor(state.data.data(), {state[0], state[1], state[2], state[3]});
    args.operators = pool.view();
    args.o = Tensor(row_o.data.data(), {rows, state[1], d_o});
    if (rope) {
      args.rotary_dim = rotary_dim_of(args.side == Side::key ? state[2] : state[3]);
      args.rope_theta = kRopeTheta;
    }
    ops_.linear_attention(args, chains.table());
    Array o({rows / inputs.rows_per_token, state[1], d_o});
    for (int64_t t = 0; t < o[0]; ++t)
      for (int64_t h = 0; h < o[1]; ++h) {
        Vector out = row_o.row((t + 1) * inputs.rows_per_token - 1, h);
        if (inputs.skip) out += inputs.skip.row(t, h);
        o.set_row(out, t, h);
      }
    return o;
  }

 private:
  const FamilyReference& family_;
  const TableOps& ops_;
};

// The laws
// ------------------------------------------------------------------------------------------------

class LawCheck {
 public:
  LawCheck(const FamilyReference& family, const Dims& dims, Style style, uint64_t seed,
           const TableOps& ops)
      : family_(family),
        dims_(dims),
        style_(style),
        seed_(seed),
        ops_(ops),
        inputs_(make_inputs(family, dims, style, seed)),
        S0_(make_state(family, dims, seed + 1)),
        trace_(family, dims, inputs_, S0_) {
    // The case's cuts: an operator's span [h, e) of the T tokens, and a point m inside it.
    Random random(seed + 2);
    h_ = random.integer(0, std::min<int64_t>(8, dims.T));
    e_ = dims.T - random.integer(0, std::min<int64_t>(4, dims.T - h_));
    m_ = random.integer(h_, e_);
  }

  std::vector<Law> all() {
    split_of_definition();
    affine();
    addition();
    relocation_of_definition();
    if (family_.traits().update != Update::nonlinear) {
      table_is_definition();
      split_of_table();
      operators_are_definition();
      apply();
      compose();
      reuse("reuse chain", inputs_, inputs_, 0);
      relocation_of_operators();
    }
    return std::move(laws_);
  }

 private:
  void add(const char* name, double error) { laws_.push_back({name, error}); }
  // Two things differ: shown on random inputs, long enough for it.
  void add_difference(const char* name, double difference) {
    laws_.push_back({name, difference, 1e-3, style_ == Style::random && dims_.T >= 8, true});
  }

  Array run(int64_t begin, int64_t end, const Array& S) const {
    return end_state(family_, dims_, inputs_, begin, end, S);
  }
  double state_error(const Array& got, const Array& want) const {
    return head_error(got, want, trace_.floor);
  }

  // Rows of o that are tokens [begin, end) of the trace.
  double output_error(const Array& o, int64_t row, int64_t begin, int64_t end, const Trace& trace,
                      const TableInputs& table) const {
    double worst = 0;
    for (int64_t t = begin; t < end; ++t)
      for (int64_t h = 0; h < dims_.Hv; ++h) {
        const Vector got = o.row(row + t - begin, h), want = trace.o.row(t, h),
                     difference = got - want;
        worst = std::max(worst, relative(std::sqrt(dot(difference, difference)),
                                         readout_floor(family_, table, trace, t, h) +
                                             std::sqrt(dot(want, want))));
      }
    return worst;
  }

  void split_of_definition() {
    Array S = S0_, o({dims_.T, dims_.Hv, dims_.dv});
    family_.run(inputs_, 0, m_, S, o);
    family_.run(inputs_, m_, dims_.T, S, o);
    Array whole_S = S0_, whole_o = o;
    family_.run(inputs_, 0, dims_.T, whole_S, whole_o);
    const double o_norm = norm(whole_o.data.data(), whole_o.data.size());
    add("split of the definition",
        std::max(state_error(S, whole_S),
                 relative(distance(o.data.data(), whole_o.data.data(), o.data.size()), o_norm)));
  }

  void affine() {
    const double defect = affinity_defect(family_, dims_, inputs_, seed_);
    if (family_.traits().update == Update::nonlinear)
      add_difference("not affine", defect);
    else
      add("affine", defect);
  }

  // Σ of the states that parts leave from zero, against the recurrence from zero.
  void addition() {
    const Array zero = zero_state(family_, dims_);
    const int64_t half = dims_.T / 2;
    const Array first = run(0, half, zero), second = run(half, dims_.T, zero),
                S = run(0, dims_.T, zero);
    Array sum = first;
    for (size_t i = 0; i < sum.data.size(); ++i) sum.data[i] += second.data[i];
    if (family_.traits().update == Update::add && family_.traits().decay == Decay::none)
      add("addition is exact", head_error(sum, S, head_norms(first) + head_norms(second)));
    else
      add_difference("addition differs", head_error(sum, S, head_norms(first)));
  }

  bool has_rotary_key() const {
    // gsa's keys lie on the value axis of the table's state, where a jump does not rotate.
    if (family_.traits().family == Family::gsa) return false;
    for (const InputSpec& spec : family_.inputs(dims_))
      if (spec.role == Role::key || spec.role == Role::unit_key) return true;
    return false;
  }

  // From R S₀ with keys and queries Δ positions later the end state is R S.
  void relocation_of_definition() {
    if (!has_rotary_key() || family_.traits().update == Update::nonlinear) return;
    const Inputs here = at_position(family_, dims_, inputs_, 0);
    const Inputs there = at_position(family_, dims_, inputs_, kShift);
    const Array S = end_state(family_, dims_, here, 0, dims_.T, S0_);
    const Array moved = end_state(family_, dims_, there, 0, dims_.T, rotated_state(S0_, kShift));
    const double error = state_error(moved, rotated_state(S, kShift));
    if (family_.traits().relocatable)
      add("relocation of the state", error);
    else
      add_difference("relocation differs", error);
  }

  void table_is_definition() {
    TableLayer layer(family_, inputs_, ops_, 1, 0);
    layer.set_state(0, S0_);
    const Array o = layer.run(layer.chains().chain(0, 0, false).step(dims_.T));
    add("table = definition, state", state_error(layer.own_state(0), trace_.S.back()));
    add("table = definition, outputs", output_error(o, 0, 0, dims_.T, trace_, layer.inputs));
  }

  // Steps of one forward, and two forwards with the operator carried along, give what one step
  // gives.
  void split_of_table() {
    TableLayer whole(family_, inputs_, ops_, 1, 1), steps = whole;
    whole.set_state(0, S0_);
    const Array o = whole.run(whole.chains().chain(0, 0, false).step(dims_.T, 0));
    steps.set_state(0, S0_);
    Array steps_o =
        steps.run(steps.chains().chain(0, 0, false).step(h_).step(m_ - h_).step(dims_.T - m_));
    double error = std::max(state_error(steps.own_state(0), whole.own_state(0)),
                            relative(distance(steps_o.data.data(), o.data.data(), o.data.size()),
                                     norm(o.data.data(), o.data.size())));

    TableLayer first(family_, gather(family_, dims_, {{&inputs_, range(0, m_)}}), ops_, 1, 1);
    first.set_state(0, S0_);
    first.run(first.chains().chain(0, 0, false).step(m_, 0));
    TableLayer second(family_, gather(family_, dims_, {{&inputs_, range(m_, dims_.T)}}), ops_, 1,
                      1);
    second.state = first.state;
    second.pool = first.pool;
    second.run(second.chains().chain(0, 0, false).step(dims_.T - m_, 0, m_));
    error = std::max(error, state_error(second.own_state(0), whole.own_state(0)));
    if (m_ > 0) error = std::max(error, operator_error({second.pool, 0}, {whole.pool, 0}));
    add("split of the table", error);
  }

  // Operators that the table makes of [0, T) and [h, e).
  TableLayer layer_with_operators(const Inputs& inputs) const {
    TableLayer layer(
        family_,
        gather(family_, dims_, {{&inputs, range(0, dims_.T)}, {&inputs, range(0, dims_.T)}}), ops_,
        2, 2);
    layer.run(layer.chains()
                  .chain(0, 0, true)
                  .step(dims_.T, 0)
                  .chain(0, 1, true)
                  .step(h_)
                  .step(e_ - h_, 1)
                  .step(dims_.T - e_));
    return layer;
  }

  // Probes the definition's map of a span with every basis state and compares it with the
  // operator's.
  double probe_error(int64_t begin, int64_t end, Pool pool, int64_t slot) const {
    const Array zero = zero_state(family_, dims_);
    const Array U = run(begin, end, zero);
    const Array table_U = family_.to_table_state(U);
    double worst = head_error(pool.U_of(slot), table_U, larger(head_norms(table_U), trace_.floor));
    std::fill(pool.U.data.begin(), pool.U.data.end(), 0.0);
    const Vector floor = 1.0 + head_norms(U);
    for (int64_t i = 0; i < zero[1]; ++i)
      for (int64_t j = 0; j < zero[2]; ++j) {
        Array basis = zero;
        for (int64_t h = 0; h < dims_.Hv; ++h) basis(h, i, j) = 1;
        Array image = run(begin, end, basis);
        for (size_t n = 0; n < image.data.size(); ++n) image.data[n] -= U.data[n];
        Array applied = family_.to_table_state(basis);
        ops_.apply(pool.slot(slot),
                   Tensor(applied.data.data(), {applied[0], applied[1], applied[2]}));
        worst = std::max(worst, head_error(family_.from_table_state(applied), image, floor));
      }
    return worst;
  }

  void operators_are_definition() {
    const TableLayer layer = layer_with_operators(inputs_);
    add("operator of the whole", probe_error(0, dims_.T, layer.pool, 0));
    add("operator of a middle span", probe_error(h_, e_, layer.pool, 1));
  }

  // The operator of [h, e) takes S_h of the recurrence to S_e.
  void apply() {
    TableLayer layer = layer_with_operators(inputs_);
    Array S = family_.to_table_state(trace_.S[h_]);
    ops_.apply(layer.pool.slot(1), Tensor(S.data.data(), {S[0], S[1], S[2]}));
    add("apply", state_error(family_.from_table_state(S), trace_.S[e_]));
  }

  void compose() {
    // Slots: 0 [0, h) · 1 [h, m) · 2 [m, T) · 3 [0, m) · 4 [h, T) · 5 the empty span · 6 [0, T).
    const int64_t T = dims_.T;
    std::vector<TokensOf> parts(4, {&inputs_, range(0, T)});
    TableLayer layer(family_, gather(family_, dims_, parts), ops_, 4, 7);
    layer.run(layer.chains()
                  .chain(0, 0, true)
                  .step(h_, 0)
                  .step(m_ - h_, 1)
                  .step(0, 5)
                  .step(T - m_, 2)
                  .chain(0, 1, true)
                  .step(m_, 3)
                  .step(T - m_)
                  .chain(0, 2, true)
                  .step(h_)
                  .step(T - h_, 4)
                  .chain(0, 3, true)
                  .step(T, 6));
    Pool& made = layer.pool;
    Pool got(family_.traits(), 4, made.U[1], made.U[2], made.U[3]);
    ops_.compose(made.slot(1), made.slot(0), got.slot(0));
    ops_.compose(made.slot(2), made.slot(1), got.slot(1));
    add("compose = joined span",
        std::max(operator_error({got, 0}, {made, 3}, {{made, 1}, {made, 0}}),
                 operator_error({got, 1}, {made, 4}, {{made, 2}, {made, 1}})));
    ops_.compose(made.slot(2), got.slot(0), got.slot(2));  // 2 ∘ (1 ∘ 0)
    ops_.compose(got.slot(1), made.slot(0), got.slot(3));  // (2 ∘ 1) ∘ 0
    const std::vector<Slot> factors = {{made, 2}, {made, 1}, {made, 0}};
    add("compose is associative", std::max(operator_error({got, 2}, {got, 3}, factors),
                                           operator_error({got, 3}, {made, 6}, factors)));

    Pool identity(family_.traits(), 3, made.U[1], made.U[2], made.U[3]);
    ops_.set_identity(identity.slot(0));
    ops_.compose(identity.slot(0), made.slot(6), identity.slot(1));
    ops_.compose(made.slot(6), identity.slot(0), identity.slot(2));
    Array S = family_.to_table_state(S0_);
    ops_.apply(identity.slot(0), Tensor(S.data.data(), {S[0], S[1], S[2]}));
    add("empty span = identity", std::max({operator_error({made, 5}, {identity, 0}),
                                           operator_error({identity, 1}, {made, 6}),
                                           operator_error({identity, 2}, {made, 6}),
                                           state_error(family_.from_table_state(S), S0_)}));
  }

  // Chain 0 builds the segment alone from `built` inputs, chain 1 reuses its [h, e) by a jump, with
  // seams from `used` inputs, which are `shift` positions later. Both agree with the recurrence.
  void reuse(const char* name, const Inputs& built, const Inputs& used, int64_t shift) {
    const int64_t T = dims_.T;
    TableLayer layer(family_,
                     gather(family_, dims_,
                            {{&built, range(0, T)}, {&used, range(0, h_)}, {&used, range(e_, T)}}),
                     ops_, 2, 1);
    layer.set_state(1, S0_);
    const Array o = layer.run(layer.chains()
                                  .chain(0, 0, true)
                                  .step(h_)
                                  .step(e_ - h_, 0)
                                  .step(T - e_)
                                  .chain(1, 1, false)
                                  .step(h_)
                                  .jump(0, e_ - h_, shift)
                                  .step(T - e_),
                              shift != 0);
    const Trace alone(family_, dims_, built, zero_state(family_, dims_));
    const Trace reused(family_, dims_, used, S0_);
    const TableInputs here = family_.to_table(built), there = family_.to_table(used);
    const Vector floor = larger(alone.floor, reused.floor);  // U comes from the segment alone
    double error = std::max(head_error(layer.own_state(0), alone.S.back(), alone.floor),
                            head_error(layer.own_state(1), reused.S.back(), floor));
    // From zero a normaliser may be next to nothing, and the sign of z under RoPE is anyone's.
    const bool quotient = family_.traits().readout == Readout::normalised && shift != 0;
    if (!quotient)
      error = std::max({error, output_error(o, 0, 0, T, alone, here),
                        output_error(o, T, 0, h_, reused, there),
                        output_error(o, T + h_, e_, T, reused, there)});
    add(name, error);
  }

  void relocation_of_operators() {
    if (!family_.traits().relocatable) return;
    const Inputs here = at_position(family_, dims_, inputs_, 0);
    const Inputs there = at_position(family_, dims_, inputs_, kShift);
    Pool moved = layer_with_operators(here).pool;
    const Pool want = layer_with_operators(there).pool;
    const Side side = family_.traits().side;
    const int rotary_dim = rotary_dim_of(side == Side::key ? want.U[2] : want.U[3]);
    double error = 0;
    for (int64_t slot = 0; slot < 2; ++slot) {
      ops_.relocate(moved.slot(slot), kShift, rotary_dim, kRopeTheta, side);
      error = std::max(error, operator_error({moved, slot}, {want, slot}));
    }
    add("relocation of operators", error);
    reuse("reuse chain, moved", here, there, kShift);
  }

  static constexpr int64_t kShift = 137;

  const FamilyReference& family_;
  const Dims dims_;
  const Style style_;
  const uint64_t seed_;
  const TableOps& ops_;
  const Inputs inputs_;
  const Array S0_;
  const Trace trace_;
  int64_t h_, m_, e_;
  std::vector<Law> laws_;
};

// The table in one precision, from zero: final states and outputs as float64.
template <class T>
struct Straight {
  Array state, o;

  Straight(const FamilyTraits& traits, const TableInputs& inputs) {
    const int64_t R = inputs.v[0], Hv = inputs.v[1], dk = inputs.k.last(), dv = inputs.v.last();
    const int64_t d_o = inputs.output_dim(traits);
    std::vector<T> S(Hv * dk * dv), out(R * Hv * d_o);
    LinearAttentionArgs args = inputs.args(traits);
    std::vector<std::vector<T>> memory;
    for (Tensor* tensor :
         {&args.q, &args.k, &args.v, &args.g, &args.A, &args.beta, &args.a, &args.b, &args.u}) {
      if (!*tensor) continue;
      const double* from = tensor->as<double>();
      memory.emplace_back(from, from + tensor->size());
      tensor->data = memory.back().data();
      tensor->dtype = kDTypeOf<T>;
    }
    args.state = Tensor(S.data(), {1, Hv, dk, dv});
    args.o = Tensor(out.data(), {R, Hv, d_o});
    linear_attention<T>(args, Chains(1).chain(0, 0, true).step(R).table());
    state = Array({Hv, dk, dv});
    std::copy(S.begin(), S.end(), state.data.begin());
    o = Array({Hv, R, d_o});  // head first, to be compared by head
    for (int64_t r = 0; r < R; ++r)
      for (int64_t h = 0; h < Hv; ++h)
        for (int64_t j = 0; j < d_o; ++j) o(h, r, j) = out[(r * Hv + h) * d_o + j];
  }
};

}  // namespace

std::string_view name_of(Style style) {
  switch (style) {
    case Style::random:
      return "random";
    case Style::no_decay:
      return "no_decay";
    case Style::strong_decay:
      return "strong_decay";
    case Style::equal_keys:
      return "equal_keys";
    case Style::zero_keys:
      return "zero_keys";
    case Style::slow:
      return "slow";
    case Style::repeated:
      return "repeated";
  }
  return "?";
}

Inputs make_inputs(const FamilyReference& family, const Dims& dims, Style style, uint64_t seed) {
  Random random(seed);
  Inputs inputs;
  for (const InputSpec& spec : family.inputs(dims))
    inputs.emplace(spec.name, make_input(spec, style, random));
  return inputs;
}

Array make_state(const FamilyReference& family, const Dims& dims, uint64_t seed) {
  Random random(seed);
  Array S(family.state_shape(dims));
  for (double& element : S.data) element = random.normal();
  if (family.traits().readout == Readout::normalised)
    for (int64_t h = 0; h < S[0]; ++h)
      for (int64_t i = 0; i < S[1]; ++i) S(h, i, S[2] - 1) = std::abs(S(h, i, S[2] - 1));
  return S;
}

std::vector<Law> check_laws(const FamilyReference& family, Dims dims, Style style, uint64_t seed,
                            const TableOps& ops) {
  return LawCheck(family, family.fit(dims), style, seed, ops).all();
}

double affinity_defect(const FamilyReference& family, const Dims& dims, const Inputs& inputs,
                       uint64_t seed) {
  const double weight = 0.3;
  const Array first = make_state(family, dims, seed), second = make_state(family, dims, seed + 1);
  const auto mixed = [&](const Array& a, const Array& b) {
    Array out = a;
    for (size_t i = 0; i < out.data.size(); ++i)
      out.data[i] = weight * a.data[i] + (1 - weight) * b.data[i];
    return out;
  };
  const Trace from_first(family, dims, inputs, first), from_second(family, dims, inputs, second);
  const Array of_mixed = end_state(family, dims, inputs, 0, dims.T, mixed(first, second));
  return head_error(of_mixed, mixed(from_first.S.back(), from_second.S.back()),
                    larger(from_first.floor, from_second.floor));
}

double retnet_addition_error(double gamma, int64_t L) {
  const auto family = make_retnet();
  const Dims dims{.T = 2 * L, .Hk = 1, .Hv = 1, .dk = 4, .dv = 6};
  Inputs inputs = make_inputs(*family, dims, Style::random, 1);
  inputs.at("gamma")(0) = gamma;
  const Array zero = zero_state(*family, dims);
  const Array first = end_state(*family, dims, inputs, 0, L, zero);
  const Array second = end_state(*family, dims, inputs, L, 2 * L, zero);
  const Array S = end_state(*family, dims, inputs, 0, 2 * L, zero);
  Array sum = first;
  for (size_t i = 0; i < sum.data.size(); ++i) sum.data[i] += second.data[i];
  return head_error(sum, S, head_norms(first));
}

double conv_split_error(int64_t T, int64_t C, int64_t W, uint64_t seed) {
  Random random(seed);
  Array x({T, C}), w({C, W}), window({W - 1, C});
  for (Array* array : {&x, &w, &window})
    for (double& element : array->data) element = random.normal();
  const int64_t cut = random.integer(0, T);
  Array head({cut, C}), rest({T - cut, C});
  std::copy_n(x.data.begin(), head.data.size(), head.data.begin());
  std::copy(x.data.begin() + head.data.size(), x.data.end(), rest.data.begin());

  const Array whole = short_conv(x, w, window), first = short_conv(head, w, window);
  const Array middle = window_after(window, conv_tail(head, W));
  const Array second = short_conv(rest, w, middle);
  std::vector<double> joined = first.data;
  joined.insert(joined.end(), second.data.begin(), second.data.end());
  const Array end = window_after(middle, conv_tail(rest, W));
  const Array whole_end = window_after(window, conv_tail(x, W));
  return std::max(relative(distance(joined.data(), whole.data.data(), joined.size()),
                           norm(whole.data.data(), whole.data.size())),
                  relative(distance(end.data.data(), whole_end.data.data(), end.data.size()), 1));
}

double float32_error(const FamilyReference& family, Dims dims, Style style, uint64_t seed) {
  dims = family.fit(dims);
  TableInputs inputs = family.to_table(make_inputs(family, dims, style, seed));
  for (Array* array : {&inputs.q, &inputs.k, &inputs.v, &inputs.g, &inputs.A, &inputs.beta,
                       &inputs.a, &inputs.b, &inputs.u})
    for (double& element : array->data) element = static_cast<float>(element);
  const Straight<float> got(family.traits(), inputs);
  const Straight<double> want(family.traits(), inputs);
  return std::max(head_error(got.state, want.state, head_norms(want.state)),
                  head_error(got.o, want.o, head_norms(want.o)));
}

}  // namespace hypic::reference
