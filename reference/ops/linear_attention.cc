#include "reference/ops/linear_attention.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "reference/ops/dot.h"
#include "reference/ops/threads.h"
#include "reference/ops/transfer_operator.h"

namespace hypic::reference {
namespace {

// x ← eᵍ x + change. For slow decays the complement expm1(g) carries the digits: multiplying by a rounded
// expf(g) drifts by 1e-4 over 32k tokens. Decay and change go in together, so that x is rounded once: adding
// the same k vᵀ to a slow head on its own is off by 1e-2 after 32k equal tokens, this way by 1e-4.
template <class T>
struct DecayFactor {
  T factor;
  bool complement;
  explicit DecayFactor(T g)
      : factor(g > T(-0.5) ? std::expm1(g) : std::exp(g)), complement(g > T(-0.5)) {}
  T operator()(T x, T change = 0) const {
    return complement ? x + (factor * x + change) : factor * x + change;
  }
};

// One value head of one layer: the recurrence of LinearAttentionArgs on matrices of this head.
template <class T>
class Head {
 public:
  Head(const LinearAttentionArgs& args, int64_t head)
      : args_(args),
        h_(head),
        kh_(head / (args.v[1] / args.k[1])),
        dk_(args.k[2]),
        dv_(args.v[2]),
        read_(dv_),
        d_(dv_) {}

  // S, [d_k, d_v], through row r, and its output.
  void run(int64_t r, T* S) {
    if (args_.readout == Readout::bonus) read_bonus(r, S);
    load_input(r);
    load_decay(r);
    advance(r, S, dv_, k(r), d_.data());
    if (args_.readout != Readout::bonus) read(r, S);
  }

  // The operator through row r: T ← A·T, U ← A·U + c dᵀ.
  void extend(int64_t r, const TransferOperator& op) {
    load_input(r);
    load_decay(r);
    advance(r, op.U.at(h_).as<T>(), dv_, k(r), d_.data());
    if (op.log_scale) op.log_scale.as<T>()[h_] += scalar_g(r);
    if (!op.T) return;
    T* M = op.T.at(h_).as<T>();
    switch (op.kind) {
      case OperatorKind::diagonal:
        for (int64_t i = 0; i < dk_; ++i) M[i] = decays_[i](M[i]);
        break;
      case OperatorKind::elementwise:
        for (int64_t i = 0; i < dk_ * dv_; ++i) M[i] = decays_[i](M[i]);
        break;
      case OperatorKind::dense:
        if (op.log_scale) decays_.assign(dk_, DecayFactor<T>(T{0}));  // log_scale holds it
        advance(r, M, dk_, nullptr, nullptr);
        break;
      default:
        break;
    }
  }

 private:
  static T* row(const Tensor& t, int64_t r, int64_t head) {
    return t.as<T>() + r * t.stride[0] + head * t.stride[1];
  }
  const T* k(int64_t r) const { return row(args_.k, r, kh_); }
  const T* q(int64_t r) const { return row(args_.q, r, kh_); }
  T scalar_g(int64_t r) const { return *row(args_.g, r, h_); }
  T beta(int64_t r) const { return args_.beta ? *row(args_.beta, r, h_) : T{1}; }

  void load_input(int64_t r) {
    const T* v = row(args_.v, r, h_);
    const T beta_r = beta(r);
    for (int64_t j = 0; j < dv_; ++j) d_[j] = beta_r * v[j];
  }

  // The decays of token r: one for each row of the state, elementwise one for each entry.
  void load_decay(int64_t r) {
    decays_.clear();
    switch (args_.decay) {
      case Decay::none:
        decays_.assign(dk_, DecayFactor<T>(T{0}));
        break;
      case Decay::scalar:
        decays_.assign(dk_, DecayFactor<T>(scalar_g(r)));
        break;
      case Decay::diagonal:
        for (int64_t i = 0; i < dk_; ++i) decays_.emplace_back(row(args_.g, r, h_)[i]);
        break;
      case Decay::elementwise: {
        const T* delta = row(args_.g, r, h_);
        const T* A = args_.A.as<T>() + h_ * dk_ * dv_;
        for (int64_t i = 0; i < dk_; ++i)
          for (int64_t j = 0; j < dv_; ++j) decays_.emplace_back(delta[j] * A[i * dv_ + j]);
        break;
      }
    }
  }

  // M ← A·M + c dᵀ, M [d_k, n], with the loaded decays; without c only A·M.
  void advance(int64_t r, T* M, int64_t n, const T* c, const T* d) {
    if (args_.update == Update::add) {
      const bool by_entry = args_.decay == Decay::elementwise;
      for (int64_t i = 0; i < dk_; ++i)
        for (int64_t j = 0; j < n; ++j)
          M[i * n + j] = decays_[by_entry ? i * n + j : i](M[i * n + j], c[i] * d[j]);
      return;
    }
    // change = a readᵀ + c dᵀ, where read = −Mᵀ b of the decayed or the undecayed M.
    read_.assign(n, T{0});
    const T* b = args_.b ? row(args_.b, r, h_) : k(r);
    const bool decayed = args_.update == Update::delta;
    for (int64_t i = 0; i < dk_; ++i)
      for (int64_t j = 0; j < n; ++j)
        read_[j] += b[i] * (decayed ? decays_[i](M[i * n + j]) : M[i * n + j]);
    const T write = args_.b ? T{-1} : -beta(r);
    for (int64_t j = 0; j < n; ++j) read_[j] *= write;
    const T* a = args_.a ? row(args_.a, r, h_) : k(r);
    if (c && !args_.a) {  // a = c = k: one outer product
      for (int64_t j = 0; j < n; ++j) read_[j] += d[j];
      c = nullptr;
    }
    for (int64_t i = 0; i < dk_; ++i)
      for (int64_t j = 0; j < n; ++j)
        M[i * n + j] = decays_[i](M[i * n + j], c ? a[i] * read_[j] + c[i] * d[j] : a[i] * read_[j]);
  }

  // o = scale · Mᵀq over the d_k rows of M.
  void contract(const T* q, const T* S, T* o) const {
    std::fill(o, o + dv_, T{0});
    for (int64_t i = 0; i < dk_; ++i)
      for (int64_t j = 0; j < dv_; ++j) o[j] += q[i] * S[i * dv_ + j];
    for (int64_t j = 0; j < dv_; ++j) o[j] *= static_cast<T>(args_.scale);
  }

  void read(int64_t r, const T* S) {
    T* o = row(args_.o, r, h_);
    const T* qr = q(r);
    if (args_.side == Side::value) {  // the stored state is transposed
      for (int64_t i = 0; i < dk_; ++i)
        o[i] = static_cast<T>(args_.scale) * dot(qr, S + i * dv_, dv_);
      return;
    }
    switch (args_.readout) {
      case Readout::plain:
        contract(qr, S, o);
        if (args_.skip) {
          const T* v = row(args_.v, r, h_);
          for (int64_t j = 0; j < dv_; ++j) o[j] += args_.skip.as<T>()[h_] * v[j];
        }
        break;
      case Readout::normalised:
      case Readout::bounded: {
        std::vector<T>& out = read_;
        out.resize(dv_);
        contract(qr, S, out.data());
        const T z = out[dv_ - 1];
        const T divisor = args_.readout == Readout::normalised
                              ? z + static_cast<T>(kNormaliserEps)
                              : std::max(std::abs(z), T{1});
        for (int64_t j = 0; j + 1 < dv_; ++j) o[j] = out[j] / divisor;
        break;
      }
      case Readout::softmax: {
        const int64_t dq = args_.q[2];
        std::vector<T> p(dk_);
        for (int64_t i = 0; i < dk_; ++i)
          p[i] = static_cast<T>(args_.scale) * dot(qr, S + i * dv_, dq);
        const T top = *std::max_element(p.begin(), p.end());
        T sum = 0;
        for (T& x : p) sum += x = std::exp(x - top);
        std::fill(o, o + dv_ - dq, T{0});
        for (int64_t i = 0; i < dk_; ++i)
          for (int64_t j = dq; j < dv_; ++j) o[j - dq] += p[i] / sum * S[i * dv_ + j];
        break;
      }
      case Readout::bonus:
        break;
    }
  }

  // Before the update: o = scale · (Sᵀq + (Σ q u k) d).
  void read_bonus(int64_t r, const T* S) {
    T* o = row(args_.o, r, h_);
    contract(q(r), S, o);
    load_input(r);
    const T* u = args_.u.as<T>() + h_ * dk_;
    T weight = 0;
    for (int64_t i = 0; i < dk_; ++i) weight += q(r)[i] * u[i] * k(r)[i];
    for (int64_t j = 0; j < dv_; ++j) o[j] += static_cast<T>(args_.scale) * weight * d_[j];
  }

  const LinearAttentionArgs& args_;
  const int64_t h_, kh_, dk_, dv_;
  std::vector<DecayFactor<T>> decays_;
  std::vector<T> read_, d_;
};

// The parts of one head of an operator, so that heads can run side by side.
TransferOperator head_of(const TransferOperator& op, int64_t h) {
  TransferOperator one = op;
  one.U = op.U.rows(h, h + 1);
  if (op.T) one.T = op.T.rows(h, h + 1);
  if (op.log_scale) one.log_scale = op.log_scale.rows(h, h + 1);
  return one;
}

// The same operator in memory of its own, for one head.
template <class T>
class HeadCopy {
 public:
  explicit HeadCopy(const TransferOperator& op) : copy(op) {
    own(op.U, copy.U, U_);
    if (op.T) own(op.T, copy.T, T_);
  }
  TransferOperator copy;

 private:
  static void own(const Tensor& from, Tensor& to, std::vector<T>& memory) {
    memory.assign(from.as<T>(), from.as<T>() + from.size());
    to.data = memory.data();
  }
  std::vector<T> U_, T_;
};

template <class T>
void jump(const LinearAttentionArgs& args, const ChainItem& item, int64_t h, const Tensor& S) {
  T* s = S.as<T>();
  if (item.compose == Compose::zero) {
    std::fill(s, s + S.size(), T{0});
    return;
  }
  HeadCopy<T> op(head_of(args.operators.at(item.op), h));
  if (args.rotary_dim > 0 && item.shift != 0)
    relocate<T>(op.copy, item.shift, args.rotary_dim, args.rope_theta, args.side);
  if (item.compose == Compose::transfer) {
    apply<T>(op.copy, S);
    return;
  }
  const T* U = op.copy.U.template as<T>();
  for (int64_t i = 0; i < S.size(); ++i) s[i] = item.compose == Compose::add ? s[i] + U[i] : U[i];
}

template <class T>
void run_chain(const LinearAttentionArgs& args, const ChainTable& table, const Chain& chain, int64_t h) {
  const int64_t dk = args.state[2], dv = args.state[3];
  Head<T> head(args, h);
  std::vector<T> memory(dk * dv, T{0});
  const Tensor S(memory.data(), {1, dk, dv});
  const auto slot = [&](int32_t s) { return args.state.at(s).at(h).template as<T>(); };
  if (!chain.fresh) std::copy_n(slot(chain.state), dk * dv, memory.begin());
  std::vector<T> aside;
  for (int32_t i = chain.item_begin; i < chain.item_end; ++i) {
    const ChainItem& item = table.items[i];
    if (item.kind == ChainItem::Kind::jump) {
      jump<T>(args, item, h, S);
    } else {
      if (!item.keep) aside = memory;
      for (int32_t r = item.begin; r < item.end; ++r) head.run(r, memory.data());
      if (!item.keep) std::copy(aside.begin(), aside.end(), memory.begin());
      if (item.op != kNone) {
        const TransferOperator op = args.operators.at(item.op);
        if (item.span == 0) set_identity<T>(head_of(op, h));
        for (int32_t r = item.begin; r < item.end; ++r) head.extend(r, op);
      }
    }
    if (item.save != kNone) std::copy(memory.begin(), memory.end(), slot(item.save));
  }
  std::copy(memory.begin(), memory.end(), slot(chain.state));
}

void check_shapes(const LinearAttentionArgs& a) {
  HYPIC_CHECK(a.update != Update::nonlinear, "not a cell of the table");
  Shapes shapes("linear_attention");
  shapes.bind(a.k, "k", {"R", "Hk", "dk"}).bind(a.v, "v", {"R", "Hv", "dv"})
      .bind(a.state, "state", {"S", "Hv", "dk", "dv"});
  HYPIC_CHECK(a.k[1] > 0 && a.v[1] % a.k[1] == 0, "value heads ", a.v[1], ", key heads ", a.k[1]);
  if (a.readout == Readout::softmax) {
    shapes.bind(a.q, "q", {"R", "Hk", "dq"});
    HYPIC_CHECK(a.q[2] < a.v[2]);
  } else {
    shapes.bind(a.q, "q", {"R", "Hk", a.side == Side::value ? "dv" : "dk"});
  }
  switch (a.decay) {
    case Decay::none: break;
    case Decay::scalar: shapes.bind(a.g, "g", {"R", "Hv"}); break;
    case Decay::diagonal: shapes.bind(a.g, "g", {"R", "Hv", "dk"}); break;
    case Decay::elementwise:
      shapes.bind(a.g, "g", {"R", "Hv", "dv"}).bind(a.A, "A", {"Hv", "dk", "dv"});
      break;
  }
  if (a.beta) shapes.bind(a.beta, "beta", {"R", "Hv"});
  if (a.a) shapes.bind(a.a, "a", {"R", "Hv", "dk"});
  if (a.b) shapes.bind(a.b, "b", {"R", "Hv", "dk"});
  if (a.readout == Readout::bonus) shapes.bind(a.u, "u", {"Hv", "dk"});
  if (a.skip) {
    shapes.bind(a.skip, "skip", {"Hv"});
    HYPIC_CHECK(a.readout == Readout::plain && a.side == Side::key && a.skip.contiguous());
  }
  if (a.operators.U) shapes.bind(a.operators.U, "U", {"operators", "Hv", "dk", "dv"});
}

}  // namespace

template <class T>
void linear_attention(const LinearAttentionArgs& args, const ChainTable& table) {
  check_shapes(args);
  HYPIC_CHECK(args.k[0] == table.row_count(), "rows ", args.k[0], ", in the table ", table.row_count());
  const TransferOperator& op = args.operators;
  check_dtype<T>(args.q, args.k, args.v, args.g, args.A, args.beta, args.a, args.b, args.u, args.skip,
                 args.state, args.o, op.log_scale, op.T, op.U);
  const int64_t heads = args.v[1];
  // Chains of one level are independent; a level reads operators that the one below made.
  for (size_t first = 0, last; first < table.chains.size(); first = last) {
    last = first;
    while (last < table.chains.size() && table.chains[last].level == table.chains[first].level) ++last;
    const int64_t work = static_cast<int64_t>(last - first) * heads;
    const int64_t rows = table.chains[last - 1].row_end - table.chains[first].row_begin;
    parallel_for(work, rows * heads * args.k[2] * args.v[2], [&](int64_t i) {
      run_chain<T>(args, table, table.chains[first + i / heads], i % heads);
    });
  }
}

template void linear_attention<float>(const LinearAttentionArgs&, const ChainTable&);
template void linear_attention<double>(const LinearAttentionArgs&, const ChainTable&);

}  // namespace hypic::reference
