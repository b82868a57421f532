#include "harness/cases/layer.h"

#include <algorithm>
#include <cmath>
#include <future>

#include "core/check.h"
#include "reference/laws.h"

namespace hypic::conformance {

using reference::InputSpec;
using reference::Role;
using reference::TableInputs;
using reference::Vector;

namespace {

bool is_rotated(Role role) {
  return role == Role::query || role == Role::key || role == Role::unit_key;
}

std::vector<double> norms(const Array& x) {
  std::vector<double> all(x[0]);
  for (int64_t h = 0; h < x[0]; ++h) {
    for (int64_t i = 0; i < x.product(1); ++i) {
      const double e = x.data[h * x.product(1) + i];
      all[h] += e * e;
    }
    all[h] = std::sqrt(all[h]);
  }
  return all;
}

Array minus(Array x, const Array& y) {
  for (size_t i = 0; i < x.data.size(); ++i) x.data[i] -= y.data[i];
  return x;
}

Array slice(const Array& x, int64_t begin, int64_t end) {
  if (!x) return {};
  Array out = x;
  out.shape[0] = end - begin;
  out.data.assign(x.data.begin() + begin * x.product(1), x.data.begin() + end * x.product(1));
  return out;
}

// T·S + U on the table's state [H, d_k, d_v], by the meaning of core/transfer_operator.h.
Array applied(OperatorKind kind, const Array& log_scale, const Array& T, const Array& U,
              const Array& S) {
  Array out = U;
  for (int64_t h = 0; h < S[0]; ++h) {
    const double scale = log_scale ? std::exp(log_scale(h)) : 1;
    for (int64_t i = 0; i < S[1]; ++i)
      for (int64_t j = 0; j < S[2]; ++j) {
        double x = S(h, i, j);
        if (kind == OperatorKind::diagonal) x *= T(h, i);
        if (kind == OperatorKind::elementwise) x *= T(h, i, j);
        if (kind == OperatorKind::dense) {
          x = 0;
          for (int64_t m = 0; m < S[1]; ++m) x += T(h, i, m) * S(h, m, j);
        }
        out(h, i, j) += scale * x;
      }
  }
  return out;
}

}  // namespace

bool has_position(const FamilyReference& family, const Dims& dims) {
  for (const InputSpec& spec : family.inputs(dims))
    if (spec.role == Role::position) return true;
  return false;
}

bool is_gate(Role role) {
  switch (role) {
    case Role::log_decay:
    case Role::decay:
    case Role::slope:
    case Role::step:
    case Role::rate:
    case Role::write:
    case Role::logit:
      return true;
    default:
      return false;
  }
}

Inputs moved_once(const FamilyReference& family, const Dims& dims, Inputs inputs, double eps,
                  Draw& draw) {
  const auto factor = [&] { return 1 + (draw.integer(0, 1) ? eps : -eps); };
  for (const InputSpec& spec : family.inputs(dims)) {
    if (spec.role == Role::position) continue;
    for (double& x : inputs.at(spec.name).data)
      x = spec.role == Role::decay ? std::exp(std::log(x) * factor()) : x * factor();
  }
  return inputs;
}

Inputs tokens_of(const FamilyReference& family, const Dims& dims, const Inputs& inputs, int64_t begin, int64_t end) {
  Inputs some;
  for (const InputSpec& spec : family.inputs(dims)) {
    const Array& x = inputs.at(spec.name);
    some.emplace(spec.name, spec.per_token ? slice(x, begin, end) : x);
  }
  return some;
}

Inputs at_positions(const FamilyReference& family, const Dims& dims, Inputs inputs,
                    const std::vector<int64_t>& positions, const Rope& rope) {
  const bool input = has_position(family, dims);
  for (const InputSpec& spec : family.inputs(dims)) {
    if (spec.role == Role::position)
      for (int64_t t = 0; t < dims.T; ++t) inputs.at(spec.name)(t) += positions[t];
    if (input || !is_rotated(spec.role)) continue;
    Array& x = inputs.at(spec.name);
    const int64_t d = x.last(), rows = dims.T ? x.product(1) / d : 0;
    for (int64_t t = 0; t < dims.T; ++t)
      for (int64_t r = 0; r < rows; ++r) {
        double* row = x.data.data() + (t * rows + r) * d;
        Vector turned(row, d);
        reference::rotate(turned, static_cast<double>(positions[t]), rope.dims(d), rope.theta);
        std::copy(std::begin(turned), std::end(turned), row);
      }
  }
  return inputs;
}

// Plans
// -------------------------------------------------------------------------------------------

Plan& Plan::chain(int32_t state, bool fresh, int32_t level) {
  Chain chain;
  chain.level = level;
  chain.state = state;
  chain.fresh = fresh;
  chain.item_begin = chain.item_end = static_cast<int32_t>(items_.size());
  chain.row_begin = chain.row_end = static_cast<int32_t>(tokens_);
  chains_.push_back(chain);
  return *this;
}

Plan& Plan::add(const ChainItem& item) {
  items_.push_back(item);
  chains_.back().item_end = static_cast<int32_t>(items_.size());
  chains_.back().row_end = static_cast<int32_t>(tokens_);
  return *this;
}

Plan& Plan::step(int64_t tokens, int32_t op, int64_t earlier) {
  ChainItem item;
  item.begin = static_cast<int32_t>(tokens_);
  tokens_ += tokens;
  item.end = static_cast<int32_t>(tokens_);
  item.op = op;
  item.span = static_cast<int32_t>(earlier);
  return add(item);
}

Plan& Plan::jump(int32_t op, int64_t span, Compose compose, int64_t shift) {
  ChainItem item;
  item.kind = ChainItem::Kind::jump;
  item.op = op;
  item.span = static_cast<int32_t>(span);
  item.compose = compose;
  item.shift = static_cast<int32_t>(shift);
  return add(item);
}

Plan& Plan::without_keep() {
  items_.back().keep = false;
  return *this;
}

Plan& Plan::save(int32_t slot) {
  items_.back().save = slot;
  return *this;
}

ChainTable Plan::table(int64_t rows_per_token, int32_t states_before, int32_t operators_before) const {
  const auto rows = [&](int32_t& tokens) { tokens *= static_cast<int32_t>(rows_per_token); };
  ChainTable table;
  table.chains = chains_;
  table.items = items_;
  for (Chain& chain : table.chains) {
    chain.state += states_before;
    rows(chain.row_begin), rows(chain.row_end);
  }
  for (ChainItem& item : table.items) {
    if (item.op != kNone) item.op += operators_before;
    if (item.save != kNone) item.save += states_before;
    if (item.kind == ChainItem::Kind::step) rows(item.begin), rows(item.end);
  }
  for (size_t c = 0; c < table.chains.size(); ++c) {
    Chain& chain = table.chains[c];
    chain.page_begin = static_cast<int32_t>(table.pages.size());
    table.pages.resize(table.pages.size() + (chain.row_end - chain.row_begin + table.page_size - 1) / table.page_size);
    for (int32_t r = chain.row_begin; r < chain.row_end; ++r) {
      table.tokens.push_back(0);
      table.positions.push_back(r);
      table.chain_of.push_back(static_cast<int32_t>(c));
    }
  }
  return table;
}

// The definition over the same plans
// ----------------------------------------------------------------

class Layer::Oracle {
 public:
  // rope: jumps relocate. measured: state_norms are wanted. eps: the state is rounded by so much after every token.
  Oracle(const FamilyReference& family, const Dims& dims, Inputs inputs, const std::optional<Rope>& rope,
         bool measured, double eps = 0)
      : o({dims.T, dims.Hv, dims.dv}),
        state_norms({measured ? dims.T : 0, dims.Hv}),
        family_(family),
        dims_(dims),
        inputs_(std::move(inputs)),
        rope_(rope),
        eps_(eps),
        scratch_(o) {}

  void run(const Plan& plan, int64_t first) {
    for (const Chain& chain : plan.chains()) {
      Array S = chain.fresh ? zero() : states.at(chain.state);
      for (int32_t i = chain.item_begin; i < chain.item_end; ++i) {
        const ChainItem& item = plan.items()[i];
        if (item.kind == ChainItem::Kind::jump) {
          S = jumped(item, S);
        } else {
          const Array before = S;
          const int64_t begin = first + item.begin, end = first + item.end;
          advance(begin, end, S);
          if (item.op != kNone) {
            if (item.span == 0) spans[item.op].clear();
            spans[item.op].emplace_back(begin, end);
          }
          if (!item.keep) S = before;
        }
        if (item.save != kNone) states[item.save] = S;
      }
      states[chain.state] = S;
    }
  }

  // The state that an operator's span makes of S.
  Array through(int32_t op, Array S, int64_t shift = 0) {
    if (shift == 0) return through(op, std::move(S), inputs_);
    const std::vector<int64_t> shifts(dims_.T, shift);
    return through(op, std::move(S), at_positions(family_, dims_, inputs_, shifts, *rope_));
  }
  Array zero() const { return Array(family_.state_shape(dims_)); }

  Array o;
  Array state_norms;  // after each token
  std::map<int32_t, Array> states;
  std::map<int32_t, std::vector<std::pair<int64_t, int64_t>>> spans;

 private:
  void advance(int64_t begin, int64_t end, Array& S) {
    for (int64_t t = begin; t < end; ++t) {
      family_.run(inputs_, t, t + 1, S, o);
      if (state_norms[0] > 0) {
        const std::vector<double> sizes = norms(S);
        std::copy(sizes.begin(), sizes.end(), state_norms.data.begin() + t * state_norms[1]);
      }
      if (eps_ == 0) continue;
      for (double& x : S.data) x *= 1 + (draw_.integer(0, 1) ? eps_ : -eps_);
    }
  }
  Array through(int32_t op, Array S, const Inputs& inputs) {
    for (const auto& [begin, end] : spans.at(op)) family_.run(inputs, begin, end, S, scratch_);
    return S;
  }
  Array jumped(const ChainItem& item, const Array& S) {
    const int64_t shift = rope_ ? item.shift : 0;
    if (item.compose == Compose::zero) return zero();
    if (item.compose == Compose::transfer) return through(item.op, S, shift);
    Array U = through(item.op, zero(), shift);
    if (item.compose == Compose::add)
      for (size_t i = 0; i < U.data.size(); ++i) U.data[i] += S.data[i];
    return U;
  }

  const FamilyReference& family_;
  const Dims dims_;
  const Inputs inputs_;
  const std::optional<Rope> rope_;
  const double eps_;
  Draw draw_{99};
  Array scratch_;
};

// The layer
// ------------------------------------------------------------------------------------------

namespace {
// Where keys come again, a write of up to w puts in w (|v| + |Sᵀk|) and takes as much out the next time: narrow
// operands round that, which is w times what stays.
double tolerance_of(const Context& context, const FamilyReference& family, const Dims& dims, bool repeated) {
  double most = 1;
  if (repeated && context.compute() != DType::f32 && context.compute() != DType::f64)
    for (const InputSpec& spec : family.inputs(dims))
      if (spec.role == Role::write) most = std::max(most, spec.max);
  return most * tolerance(context.compute(), repeated);
}
}  // namespace

Layer::Layer(Context& context, const FamilyReference& family, const Dims& dims, Inputs inputs,
             const LayerSetup& setup)
    : context_(context),
      family_(family),
      dims_(dims),
      setup_(setup),
      tolerance_(tolerance_of(context, family, dims, setup.repeated)),
      pools_(context.backend),
      computed_(dims.T) {
  for (const InputSpec& spec : family.inputs(dims)) {
    Array& x = inputs.at(spec.name);
    if (spec.role != Role::position)
      x = rounded(std::move(x), is_gate(spec.role) ? context.state() : context.compute());
  }
  table_ = family.to_table(inputs);
  Draw draw(97);
  const double eps = unit_roundoff(context.state());
  const FamilyTraits& traits = family.traits();
  const Inputs moved = moved_once(family, dims, inputs, eps, draw);
  moved_ = std::make_unique<Oracle>(family, dims, moved, setup.rope, false);
  if (traits.readout == Readout::normalised || traits.readout == Readout::bounded)
    moved_quotient_ = std::make_unique<Oracle>(family, dims, moved, setup.rope, false, eps);
  oracle_ = std::make_unique<Oracle>(family, dims, std::move(inputs), setup.rope, true);

  const int64_t H = table_.v[1], dk = table_.k.last(), dv = table_.v.last(), ops = setup.operators;
  const DType dtype = context.state();
  const auto pool = [&](const char* name, int32_t before, std::vector<int64_t> shape) {
    shape[0] += before;
    if (before == 0) return pools_.output(name, shape, dtype);
    return far_pools_.emplace_back(context.backend, dtype, shape).tensor();
  };
  state_ = pool("state", setup.states_before, {setup.states, H, dk, dv});
  operators_.kind = operator_kind(traits.decay, traits.update);
  const auto operators = [&](const char* name, std::vector<int64_t> shape) {
    return pool(name, setup.operators_before, std::move(shape));
  };
  if (ops > 0) {
    operators_.U = operators("operators.U", {ops, H, dk, dv});
    if (has_log_scale(traits.decay, traits.update)) operators_.log_scale = operators("operators.log_scale", {ops, H});
    if (operators_.kind == OperatorKind::diagonal) operators_.T = operators("operators.T", {ops, H, dk});
    if (operators_.kind == OperatorKind::elementwise) operators_.T = operators("operators.T", {ops, H, dk, dv});
    if (operators_.kind == OperatorKind::dense) operators_.T = operators("operators.T", {ops, H, dk, dk});
  }
  if (setup.skip) skip_ = rounded(draw.normals({H}), dtype);
  outputs_ = Array({dims.T, H, table_.output_dim(traits)}, std::nan(""));
}

Layer::~Layer() = default;

std::vector<Layer::Oracle*> Layer::oracles() const {
  std::vector<Oracle*> all = {oracle_.get(), moved_.get()};
  if (moved_quotient_) all.push_back(moved_quotient_.get());
  return all;
}

void Layer::set_state(int32_t slot, const Array& state) {
  settle();
  Array moved = oracle_->states[slot] = rounded(state, context_.state());
  Draw draw(98 + static_cast<uint64_t>(slot));
  const double eps = unit_roundoff(context_.state());
  for (double& x : moved.data) x *= 1 + (draw.integer(0, 1) ? eps : -eps);
  for (Oracle* oracle : oracles())
    if (oracle != oracle_.get()) oracle->states[slot] = moved;
  put(context_.backend, state_at(slot), family_.to_table_state(state));
}

ChainTable Layer::table_of(const Plan& plan) const {
  ChainTable table = plan.table(table_.rows_per_token, setup_.states_before, setup_.operators_before);
  table.check(setup_.states_before + setup_.states, setup_.operators_before + setup_.operators, 1);
  return table;
}

void Layer::run(const Plan& plan, int64_t first) {
  const int64_t n = table_.rows_per_token;
  Arena arena(context_.backend);
  const LinearAttentionArgs args = arguments(arena, first * n, (first + plan.tokens()) * n);
  const ChainTable table = table_of(plan);
  context_.backend.begin(table);
  context_.backend.linear_attention(args);
  keep(plan, first, arena, args.o);
}

void Layer::run_repeatedly(const std::string& what, const Plan& plan, int times) {
  const int64_t n = table_.rows_per_token;
  Arena arena(context_.backend);
  const LinearAttentionArgs args = arguments(arena, 0, plan.tokens() * n);
  const ChainTable table = table_of(plan);
  context_.backend.begin(table);
  const auto before = arena.save(), pools_before = pools_.save();
  context_.backend.linear_attention(args);
  const auto after = arena.save(), pools_after = pools_.save();
  for (int i = 2; i <= times; ++i) {
    arena.restore(before);
    pools_.restore(pools_before);
    context_.backend.linear_attention(args);
    const std::string changed = arena.first_change(after) + pools_.first_change(pools_after);
    context_.expect(changed.empty(), str(what, ", run ", i), changed + " has other bits than after run 1");
  }
  keep(plan, 0, arena, args.o);
}

LinearAttentionArgs Layer::arguments(Arena& arena, int64_t begin, int64_t end) const {
  const FamilyTraits& traits = family_.traits();
  const DType compute = context_.compute(), state = context_.state();
  const auto rows = [&](const char* name, const Array& x, DType dtype) {
    return x ? arena.input(name, slice(x, begin, end), dtype, setup_.gap, setup_.lead) : Tensor();
  };
  const auto whole = [&](const char* name, const Array& x) {
    return x ? arena.input(name, x, state) : Tensor();
  };
  LinearAttentionArgs args{
      .decay = traits.decay,
      .update = traits.update,
      .readout = traits.readout,
      .scale = table_.scale,
      .q = rows("q", table_.q, compute),
      .k = rows("k", table_.k, compute),
      .v = rows("v", table_.v, compute),
      .g = rows("g", table_.g, state),
      .A = whole("A", table_.A),
      .beta = rows("beta", table_.beta, state),
      .a = rows("a", table_.a, compute),
      .b = rows("b", table_.b, compute),
      .u = whole("u", table_.u),
      .state = state_,
      .operators = operators_,
      .side = traits.side,
      .o = arena.output("o", {end - begin, outputs_[1], outputs_[2]}, compute, setup_.gap, setup_.lead),
      .skip = whole("skip", skip_)};
  if (setup_.rope) {
    args.rotary_dim = setup_.rope->dims(traits.side == Side::key ? state_[2] : state_[3]);
    args.rope_theta = setup_.rope->theta;
  }
  return args;
}

// What a forward left.
void Layer::keep(const Plan& plan, int64_t first, const Arena& arena, const Tensor& tensor) {
  const int64_t n = table_.rows_per_token;
  const Array o = arena.read(tensor);
  for (int64_t t = 0; t < plan.tokens(); ++t) {
    computed_[first + t] = true;
    for (int64_t h = 0; h < o[1]; ++h) {
      Vector row = o.row((t + 1) * n - 1, h);
      if (table_.skip) row += table_.skip.row(first + t, h);
      outputs_.set_row(row, first + t, h);
    }
  }
  context_.unharmed("memory", arena);
  context_.unharmed("memory", pools_);
  pending_.emplace_back(plan, first);
}

// Runs the definition over what the backend has run.
void Layer::settle() {
  const auto catch_up = [&](Oracle* oracle) {
    for (const auto& [plan, first] : pending_) {
      oracle->run(plan, first);
      for (int64_t t = first; skip_ && t < first + plan.tokens(); ++t)
        for (int64_t h = 0; h < outputs_[1]; ++h)
          oracle->o.set_row(oracle->o.row(t, h) + skip_(h) * table_.v.row(t, h), t, h);
    }
  };
  std::vector<std::future<void>> others;  // at the sizes of --thorough each takes minutes
  for (Oracle* oracle : oracles())
    if (oracle != oracle_.get()) others.push_back(std::async(std::launch::async, catch_up, oracle));
  catch_up(oracle_.get());
  for (std::future<void>& other : others) other.get();
  pending_.clear();
}

std::vector<double> Layer::bounds(const Array& want, const Array& moved, int axis,
                                  const std::vector<double>& floors) const {
  std::vector<double> all = group_errors(moved, want, axis, floors);
  for (double& x : all) x = std::isfinite(x) ? std::max(tolerance_, kRoundings * x) : tolerance_;
  return all;
}

void Layer::check(const std::string& what) {
  settle();
  Array got = outputs_, want = oracle_->o, moved = oracles().back()->o;
  for (int64_t t = 0; t < dims_.T; ++t)
    if (!computed_[t])
      for (Array* x : {&got, &want, &moved})
        std::fill_n(x->data.begin() + t * x->product(1), x->product(1), 0.0);
  const std::vector<double> floors = output_floors();
  context_.compare(what + ", outputs", got, want, 1, bounds(want, moved, 1, floors), floors);
  for (int32_t slot = 0; slot < setup_.states; ++slot) {
    if (const auto known = oracle_->states.find(slot); known != oracle_->states.end())
      context_.compare(str(what, ", state ", slot), state(slot), known->second, 0,
                       bounds(known->second, moved_->states.at(slot), 0));
    else
      check_untouched(str(what, ", state ", slot), read(state_at(slot)));
  }
  for (int32_t slot = 0; slot < setup_.operators; ++slot)
    if (oracle_->spans.contains(slot))
      check_operator(str(what, ", operator ", slot), slot);
    else
      for (const Operator op = operator_at(slot); const Array* part : {&op.U, &op.T, &op.log_scale})
        check_untouched(str(what, ", operator ", slot), *part);
}

// By head, the size that products of such q and S have, ‖q‖ ‖S‖ / √d: outputs that happen to cancel
// are not computed to their own size. Other readouts than such products have no floor.
std::vector<double> Layer::output_floors() const {
  std::vector<double> floors(table_.v[1]);
  const Readout readout = family_.traits().readout;
  if (readout != Readout::plain && readout != Readout::bonus) return floors;
  const int64_t group = table_.v[1] / table_.q[1], n = table_.rows_per_token;
  for (int64_t h = 0; h < table_.v[1]; ++h) {
    for (int64_t t = 0; t < dims_.T; ++t) {
      if (!computed_[t]) continue;
      const Vector q = table_.q.row((t + 1) * n - 1, h / group);
      const double S = oracle_->state_norms(t, h);
      floors[h] += reference::dot(q, q) * S * S;
    }
    floors[h] = table_.scale * std::sqrt(floors[h] / static_cast<double>(table_.q.last()));
  }
  return floors;
}

void Layer::check_untouched(const std::string& what, const Array& slot) {
  context_.expect(std::all_of(slot.data.begin(), slot.data.end(), [](double x) { return std::isnan(x); }), what,
                  "written, though no chain uses the slot");
}

Array Layer::read(const Tensor& slot) const {
  if (!slot) return {};
  Array out(std::vector<int64_t>(slot.shape.begin(), slot.shape.begin() + slot.rank));
  out.data = to_doubles(context_.backend, slot);
  return out;
}

Layer::Operator Layer::operator_at(int32_t slot) const {
  const TransferOperator op = operators_.at(setup_.operators_before + slot);
  return {read(op.log_scale), read(op.T), read(op.U)};
}

// U is what the span leaves from zero; the whole operator takes one more state where the definition
// does. T alone is held to the size of that state, so that a large U does not hide it.
void Layer::check_operator(const std::string& what, int32_t slot) {
  const Operator op = operator_at(slot);
  const Array U = oracle_->through(slot, oracle_->zero()),
              moved_U = moved_->through(slot, moved_->zero());
  context_.compare(what + ", U", family_.from_table_state(op.U), U, 0, bounds(U, moved_U, 0));
  const Array S = reference::make_state(family_, dims_, 77);
  const Array got = family_.from_table_state(
      applied(operators_.kind, op.log_scale, op.T, op.U, family_.to_table_state(S)));
  const Array want = oracle_->through(slot, S), moved = moved_->through(slot, S);
  context_.compare(what + ", T S + U", got, want, 0, bounds(want, moved, 0));
  const std::vector<double> floors = norms(S);
  const Array TS = minus(want, U), moved_TS = minus(moved, moved_U);
  context_.compare(what + ", T S", minus(got, family_.from_table_state(op.U)), TS, 0,
                   bounds(TS, moved_TS, 0, floors), floors);
}

void Layer::check_same(const std::string& what, const Layer& other, int64_t begin, int64_t end,
                       const std::vector<std::pair<int32_t, int32_t>>& states,
                       const std::vector<std::pair<int32_t, int32_t>>& operators, int64_t first) {
  context_.same(what + ", outputs", outputs(begin, end), other.outputs(first + begin, first + end), 1);
  for (const auto& [mine, theirs] : states)
    context_.same(str(what, ", state ", mine), state(mine), other.state(theirs), 0);
  for (const auto& [mine, theirs] : operators) {
    const Operator x = operator_at(mine), y = other.operator_at(theirs);
    context_.same(str(what, ", operator ", mine, ", U"), x.U, y.U, 0);
    // As in check_operator, T is held to what it is applied to: to the size of the identity.
    const double identity = std::sqrt(static_cast<double>(
        x.T && operators_.kind != OperatorKind::dense ? x.T.product(1) : x.U.product(1) / x.U.last()));
    if (x.T)
      context_.same(str(what, ", operator ", mine, ", T"), x.T, y.T, 0, std::vector<double>(x.T[0], identity));
    if (x.log_scale)
      context_.same(str(what, ", operator ", mine, ", log scale"), x.log_scale, y.log_scale, 0);
  }
}

Array Layer::outputs(int64_t begin, int64_t end) const { return slice(outputs_, begin, end); }

Array Layer::state(int32_t slot) const {
  return family_.from_table_state(read(state_at(slot)));
}

const Array& Layer::expected_outputs() {
  settle();
  return oracle_->o;
}

const Array& Layer::expected_state(int32_t slot) {
  settle();
  return oracle_->states.at(slot);
}

}  // namespace hypic::conformance
