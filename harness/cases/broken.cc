#include "harness/cases/broken.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <set>
#include <utility>

#include "core/check.h"
#include "reference/cpu_backend.h"

namespace hypic::conformance {
namespace {

// What a broken operation works with: the intact backend and the chains of the forward.
struct Intact {
  Backend& cpu;
  const ChainTable* chains;
  int64_t calls = 0;  // of the broken operation, this one included

  const ChainTable& table() const { return *chains; }
  // The operation as it should be, over another table.
  template <class Run>
  void over(const ChainTable& other, Run run) const {
    cpu.begin(other);
    run();
    cpu.begin(*chains);
  }
};

// Every operation that a fault replaces.
template <class Args>
using Operation = std::function<void(Intact&, Args)>;
struct Replaced {
  Operation<EmbeddingArgs> embedding;
  Operation<MatmulArgs> matmul;
  Operation<HeadMatmulArgs> head_matmul;
  Operation<AddArgs> add;
  Operation<RandomNormalArgs> random_normal;
  Operation<RmsNormArgs> rms_norm;
  Operation<L2NormArgs> l2_norm;
  Operation<GateMulArgs> gate_mul;
  Operation<DecayGateArgs> decay_gate;
  Operation<SigmoidArgs> sigmoid;
  Operation<CausalConvArgs> causal_conv;
  Operation<LinearAttentionArgs> linear_attention;
  Operation<RopeArgs> rope;
  Operation<AppendKvArgs> append_kv;
  Operation<AttentionArgs> attention;
  Operation<RouteArgs> route;
  Operation<ExpertsArgs> experts;
  Operation<GatherRowsArgs> gather_rows;
  Operation<SampleArgs> sample;
  Operation<AddRmsNormArgs> add_rms_norm;
  Operation<AddGatedArgs> add_gated;
  Operation<ConvGatesArgs> conv_gates;
  Operation<QkNormAppendArgs> qk_norm_append;
  Operation<GatedNormArgs> gated_norm;
  Operation<GatedLinearAttentionArgs> gated_linear_attention;
  Operation<SharedExpertArgs> shared_expert;
  Operation<MoeArgs> moe;
};

// Composites that no fault replaces keep their defaults, so that a broken primitive shows in them
// too.
class BrokenBackend final : public Backend {
 public:
  BrokenBackend(const std::string& name, Replaced replaced)
      : name_("broken:" + name),
        cpu_(reference::make_cpu_backend()),
        intact_{*cpu_, nullptr},
        replaced_(std::move(replaced)) {}

  std::string_view name() const override { return name_; }
  DType compute_dtype() const override { return cpu_->compute_dtype(); }
  DType state_dtype() const override { return cpu_->state_dtype(); }
  bool batch_invariant() const override { return cpu_->batch_invariant(); }
  size_t available_bytes() const override { return cpu_->available_bytes(); }
  void* allocate(size_t bytes) override { return cpu_->allocate(bytes); }
  MemoryUse memory_use() const override { return cpu_->memory_use(); }
  void forget_peak() override { cpu_->forget_peak(); }
  void release(void* memory) noexcept override { cpu_->release(memory); }
  void upload(const Tensor& to, const void* from) override { cpu_->upload(to, from); }
  void download(void* to, const Tensor& from) override { cpu_->download(to, from); }
  void copy(const Tensor& to, const Tensor& from) override { cpu_->copy(to, from); }
  void fill_zero(const Tensor& tensor) override { cpu_->fill_zero(tensor); }
  Rows begin(const ChainTable& table) override {
    intact_.chains = &table;
    return cpu_->begin(table);
  }

#define HYPIC_OPERATION(whole, name, Args)     \
  void name(const Args& a) override {          \
    if (!replaced_.name) return whole name(a); \
    ++intact_.calls;                           \
    replaced_.name(intact_, a);                \
  }
  HYPIC_OPERATION(cpu_->, random_normal, RandomNormalArgs)
  HYPIC_OPERATION(cpu_->, embedding, EmbeddingArgs)
  HYPIC_OPERATION(cpu_->, matmul, MatmulArgs)
  HYPIC_OPERATION(cpu_->, head_matmul, HeadMatmulArgs)
  HYPIC_OPERATION(cpu_->, add, AddArgs)
  HYPIC_OPERATION(cpu_->, rms_norm, RmsNormArgs)
  HYPIC_OPERATION(cpu_->, l2_norm, L2NormArgs)
  HYPIC_OPERATION(cpu_->, gate_mul, GateMulArgs)
  HYPIC_OPERATION(cpu_->, decay_gate, DecayGateArgs)
  HYPIC_OPERATION(cpu_->, sigmoid, SigmoidArgs)
  HYPIC_OPERATION(cpu_->, causal_conv, CausalConvArgs)
  HYPIC_OPERATION(cpu_->, linear_attention, LinearAttentionArgs)
  HYPIC_OPERATION(cpu_->, rope, RopeArgs)
  HYPIC_OPERATION(cpu_->, append_kv, AppendKvArgs)
  HYPIC_OPERATION(cpu_->, attention, AttentionArgs)
  HYPIC_OPERATION(cpu_->, route, RouteArgs)
  HYPIC_OPERATION(cpu_->, experts, ExpertsArgs)
  HYPIC_OPERATION(cpu_->, gather_rows, GatherRowsArgs)
  HYPIC_OPERATION(cpu_->, sample, SampleArgs)
  HYPIC_OPERATION(Backend::, add_rms_norm, AddRmsNormArgs)
  HYPIC_OPERATION(Backend::, add_gated, AddGatedArgs)
  HYPIC_OPERATION(Backend::, conv_gates, ConvGatesArgs)
  HYPIC_OPERATION(Backend::, qk_norm_append, QkNormAppendArgs)
  HYPIC_OPERATION(Backend::, gated_norm, GatedNormArgs)
  HYPIC_OPERATION(Backend::, gated_linear_attention, GatedLinearAttentionArgs)
  HYPIC_OPERATION(Backend::, shared_expert, SharedExpertArgs)
  HYPIC_OPERATION(Backend::, moe, MoeArgs)
#undef HYPIC_OPERATION

 private:
  const std::string name_;
  const std::unique_ptr<Backend> cpu_;
  Intact intact_;
  const Replaced replaced_;
};

// Helpers
// ------------------------------------------------------------------------------------------

float* row(const Tensor& t, int64_t r, int64_t h = 0) {
  return t.as<float>() + r * t.stride[0] + h * t.stride[1];
}

// A contiguous copy of a tensor, in its place from then on.
class Copy {
 public:
  explicit Copy(Tensor& t) : memory_(t.size()) {
    memory_.reserve(1);  // an empty tensor has an address too
    const int64_t rows = t[0], width = rows ? t.size() / rows : 0;
    for (int64_t r = 0; r < rows; ++r) std::copy_n(row(t, r), width, memory_.data() + r * width);
    t = Tensor(memory_.data(), t.dtype, std::span(t.shape.data(), t.rank));
  }

 private:
  std::vector<float> memory_;
};

std::vector<float> values_of(const Tensor& t) {
  Tensor copy = t;
  const Copy memory(copy);
  return std::vector<float>(copy.as<float>(), copy.as<float>() + copy.size());
}

void restore(const Tensor& t, const std::vector<float>& values) {
  const int64_t rows = t[0], width = rows ? t.size() / rows : 0;
  for (int64_t r = 0; r < rows; ++r) std::copy_n(values.data() + r * width, width, row(t, r));
}

// The log decays of row r, head h: one, or one a channel.
int64_t gates(const LinearAttentionArgs& a) {
  if (a.decay == Decay::scalar) return 1;
  return a.decay == Decay::diagonal ? a.g[2] : 0;
}

// visit(chain, row, head, channel, sum of the log decays since the chunk of 64 began, this one
// included).
template <class Visit>
void for_each_gate(const Intact& x, const LinearAttentionArgs& a, Visit visit) {
  for (const Chain& chain : x.table().chains)
    for (int64_t h = 0; h < a.v[1]; ++h)
      for (int64_t i = 0; i < gates(a); ++i) {
        float sum = 0;
        for (int64_t r = chain.row_begin; r < chain.row_end; ++r) {
          if ((r - chain.row_begin) % 64 == 0) sum = 0;
          sum += row(a.g, r, h)[i];
          visit(r, h, i, sum);
        }
      }
}

void scale_output(const LinearAttentionArgs& a, int64_t r, int64_t h, float factor) {
  for (int64_t j = 0; j < a.o[2]; ++j) row(a.o, r, h)[j] *= factor;
}

// State slots that the forward writes.
std::set<int32_t> written_states(const ChainTable& table) {
  std::set<int32_t> slots;
  for (const Chain& chain : table.chains) slots.insert(chain.state);
  for (const ChainItem& item : table.items)
    if (item.save != kNone) slots.insert(item.save);
  return slots;
}

std::set<int32_t> captured(const ChainTable& table) {
  std::set<int32_t> slots;
  for (const ChainItem& item : table.items)
    if (item.kind == ChainItem::Kind::step && item.op != kNone) slots.insert(item.op);
  return slots;
}

// The forward over a table that `change` has changed item by item.
template <class Change>
Operation<LinearAttentionArgs> with_items(Change change) {
  return [change](Intact& x, LinearAttentionArgs a) {
    ChainTable other = x.table();
    for (ChainItem& item : other.items) change(item);
    x.over(other, [&] { x.cpu.linear_attention(a); });
  };
}

// The operation over a table that `change` has changed.
template <class Args, class Change>
Operation<Args> with_chains(void (Backend::*run)(const Args&), Change change) {
  return [run, change](Intact& x, Args a) {
    ChainTable other = x.table();
    change(other);
    x.over(other, [&] { (x.cpu.*run)(a); });
  };
}

// Makes steps without rows of the jumps for which take(chain, number of the item, rows of the chain before it).
template <class Take>
void take_out_jumps(ChainTable& table, Take take) {
  for (const Chain& chain : table.chains) {
    int32_t row = chain.row_begin;
    for (int32_t i = chain.item_begin; i < chain.item_end; ++i) {
      ChainItem& item = table.items[i];
      if (item.kind == ChainItem::Kind::step)
        row = item.end;
      else if (take(chain, i, row - chain.row_begin))
        item = {.begin = row, .end = row, .save = item.save};
    }
  }
}

bool is_one_row(const ChainTable& table, const Chain& chain) {
  return chain.item_end - chain.item_begin == 1 && chain.row_end - chain.row_begin == 1 &&
         table.items[chain.item_begin].keep;
}

// The operation, then `change` of what it left.
template <class Change>
Operation<LinearAttentionArgs> then(Change change) {
  return [change](Intact& x, LinearAttentionArgs a) {
    x.cpu.linear_attention(a);
    change(x, a);
  };
}

// `change` of the arguments or of what they point to, then the operation.
template <class Change>
Operation<LinearAttentionArgs> first(Change change) {
  return [change](Intact& x, LinearAttentionArgs a) {
    change(x, a);
    x.cpu.linear_attention(a);
  };
}

float bfloat(float x) { return static_cast<float>(BFloat16::from(x)); }

// Linear attention
// ---------------------------------------------------------------------------------

// The final state of a partial last chunk takes an empty slot for its last gate.
void partial_chunk_gate(Intact& x, LinearAttentionArgs a) {
  const std::vector<float> before = values_of(a.state);
  x.cpu.linear_attention(a);
  if (gates(a) == 0) return;
  const std::vector<float> o = values_of(a.o);
  restore(a.state, before);
  const Copy g(a.g);
  ChainTable other = x.table();
  for (ChainItem& item : other.items)
    if (item.kind == ChainItem::Kind::step) item.op = kNone;
  for (const Chain& chain : other.chains)
    if ((chain.row_end - chain.row_begin) % 64 != 0)
      for (int64_t h = 0; h < a.v[1]; ++h)
        std::fill_n(row(a.g, chain.row_end - 1, h), gates(a), 0.0f);
  x.over(other, [&] { x.cpu.linear_attention(a); });
  restore(a.o, o);
}

void exponent_clamp(Intact& x, LinearAttentionArgs a) {
  if (gates(a) == 0) return x.cpu.linear_attention(a);
  const LinearAttentionArgs intact = a;
  const Copy g(a.g);
  constexpr float kLeast = -126 * 0.6931472f;
  for_each_gate(x, intact, [&](int64_t r, int64_t h, int64_t i, float sum) {
    const float gate = row(intact.g, r, h)[i];
    row(a.g, r, h)[i] = std::max(sum, kLeast) - std::max(sum - gate, kLeast);
  });
  x.cpu.linear_attention(a);
}

// Beyond 256 tokens the state before the chain decays by its first 256 only.
void chunk_local_decay(Intact& x, LinearAttentionArgs a) {
  if (a.decay != Decay::scalar || a.update != Update::add) return x.cpu.linear_attention(a);
  const std::vector<float> before = values_of(a.state);
  x.cpu.linear_attention(a);
  const int64_t size = a.state[2] * a.state[3];
  for (const Chain& chain : x.table().chains) {
    if (chain.fresh || chain.row_end - chain.row_begin <= 256) continue;
    for (int64_t h = 0; h < a.v[1]; ++h) {
      float some = 0, all = 0;
      for (int64_t r = chain.row_begin; r < chain.row_end; ++r) {
        all += *row(a.g, r, h);
        if (r < chain.row_begin + 256) some = all;
      }
      const int64_t at = (chain.state * a.v[1] + h) * size;
      for (int64_t i = 0; i < size; ++i)
        a.state.as<float>()[at + i] += (std::exp(some) - std::exp(all)) * before[at + i];
    }
  }
}

void drifting_decay(Intact& x, LinearAttentionArgs a) {
  if (a.decay != Decay::scalar) return x.cpu.linear_attention(a);
  const Copy g(a.g);
  for (int64_t i = 0; i < a.g.size(); ++i) {
    float& gate = a.g.as<float>()[i];
    gate = static_cast<float>(std::log(static_cast<double>(std::exp(gate))));
  }
  x.cpu.linear_attention(a);
}

void state_transposed(Intact& x, const LinearAttentionArgs& a) {
  const int64_t dk = a.state[2], dv = a.state[3];
  for (const int32_t slot : written_states(x.table()))
    for (int64_t h = 0; h < a.v[1]; ++h) {
      float* S = row(a.state, slot, h);
      const std::vector<float> old(S, S + dk * dv);
      for (int64_t i = 0; i < dk; ++i)
        for (int64_t j = 0; j < dv; ++j) S[j * dk + i] = old[i * dv + j];
    }
}

void operator_transposed(Intact& x, const LinearAttentionArgs& a) {
  if (a.operators.kind != OperatorKind::dense) return;
  const int64_t d = a.operators.T[2];
  for (const int32_t slot : captured(x.table()))
    for (int64_t h = 0; h < a.v[1]; ++h) {
      float* T = row(a.operators.T, slot, h);
      for (int64_t i = 0; i < d; ++i)
        for (int64_t j = 0; j < i; ++j) std::swap(T[i * d + j], T[j * d + i]);
    }
}

// A head seam without an operator counts among the tokens of the span after it.
void seam_counted_twice(Intact& x, LinearAttentionArgs a) {
  ChainTable other = x.table();
  for (const Chain& chain : other.chains)
    for (int32_t i = chain.item_begin; i + 1 < chain.item_end; ++i) {
      ChainItem &seam = other.items[i], &span = other.items[i + 1];
      if (seam.kind != ChainItem::Kind::step || seam.op != kNone || span.op == kNone ||
          span.kind != ChainItem::Kind::step || span.span > 0)
        continue;
      span.begin = seam.begin;
      seam.end = seam.begin;
    }
  x.over(other, [&] { x.cpu.linear_attention(a); });
}

void bonus_ignored(Intact& x, LinearAttentionArgs a) {
  if (a.readout != Readout::bonus) return x.cpu.linear_attention(a);
  const Copy u(a.u);
  std::fill_n(a.u.as<float>(), a.u.size(), 0.0f);
  x.cpu.linear_attention(a);
}

void heads_by_modulo(Intact& x, LinearAttentionArgs a) {
  const int64_t R = a.k[0], Hk = a.k[1], Hv = a.v[1];
  const auto spread = [&](Tensor& t) {
    std::vector<float> memory(R * Hv * t[2]);
    for (int64_t r = 0; r < R; ++r)
      for (int64_t h = 0; h < Hv; ++h)
        std::copy_n(row(t, r, h % Hk), t[2], &memory[(r * Hv + h) * t[2]]);
    t = Tensor(static_cast<float*>(nullptr), {R, Hv, t[2]});
    return memory;
  };
  std::vector<float> q = spread(a.q), k = spread(a.k);
  q.reserve(1), k.reserve(1);  // an empty tensor has an address too
  a.q.data = q.data();
  a.k.data = k.data();
  x.cpu.linear_attention(a);
}

double exact_angle(int32_t position, int i, int rotary_dim, double theta) {
  return position * std::pow(theta, -2.0 * i / rotary_dim);
}
double float_angle(int32_t position, int i, int rotary_dim, double theta) {
  return static_cast<float>(position) *
         std::pow(static_cast<float>(theta), -2.0f * static_cast<float>(i) / static_cast<float>(rotary_dim));
}

// Jumps turn U by an angle in float32: what it is off by is put on U between two runs.
void jump_float32_angles(Intact& x, LinearAttentionArgs a) {
  const std::vector<float> before = values_of(a.state);
  x.cpu.linear_attention(a);
  if (a.rotary_dim == 0 || a.side == Side::value) return;
  const std::vector<float> U = values_of(a.operators.U);
  const int half = a.rotary_dim / 2;
  const int64_t dv = a.v[2];
  std::set<int32_t> turned;
  ChainTable other = x.table();
  for (ChainItem& item : other.items) {
    if (item.kind == ChainItem::Kind::step) item.op = kNone;
    if (item.kind == ChainItem::Kind::step || item.shift == 0 || !turned.insert(item.op).second) continue;
    for (int64_t h = 0; h < a.v[1]; ++h)
      for (int i = 0; i < half; ++i) {
        const double error = float_angle(item.shift, i, a.rotary_dim, a.rope_theta) -
                             exact_angle(item.shift, i, a.rotary_dim, a.rope_theta);
        float *low = row(a.operators.U, item.op, h) + i * dv, *high = low + half * dv;
        for (int64_t j = 0; j < dv; ++j) {
          const double u = low[j], v = high[j];
          low[j] = static_cast<float>(std::cos(error) * u - std::sin(error) * v);
          high[j] = static_cast<float>(std::sin(error) * u + std::cos(error) * v);
        }
      }
  }
  restore(a.state, before);
  x.over(other, [&] { x.cpu.linear_attention(a); });
  restore(a.operators.U, U);
}

// S · 0 instead of 0, where a chain begins with a jump that forgets.
void nan_outlives_jumps(Intact& x, LinearAttentionArgs a) {
  const std::vector<float> before = values_of(a.state);
  x.cpu.linear_attention(a);
  const int64_t size = a.state.size() / a.state[0];
  for (const Chain& chain : x.table().chains) {
    if (chain.fresh || chain.item_begin == chain.item_end) continue;
    const ChainItem& item = x.table().items[chain.item_begin];
    const bool forgets = item.compose == Compose::last || item.compose == Compose::zero;
    if (item.kind == ChainItem::Kind::step || !forgets) continue;
    for (int64_t i = 0; i < size; ++i) row(a.state, chain.state)[i] += 0 * before[chain.state * size + i];
  }
}

void gate_of_one_row_ignored(Intact& x, LinearAttentionArgs a) {
  if (gates(a) == 0) return x.cpu.linear_attention(a);
  const Copy g(a.g);
  for (const Chain& chain : x.table().chains)
    for (int64_t h = 0; h < a.v[1] && is_one_row(x.table(), chain); ++h)
      std::fill_n(row(a.g, chain.row_begin, h), gates(a), 0.0f);
  x.cpu.linear_attention(a);
}

void write_of_zero_is_one(Intact& x, LinearAttentionArgs a) {
  if (!a.beta) return x.cpu.linear_attention(a);
  const Copy beta(a.beta);
  for (int64_t i = 0; i < a.beta.size(); ++i)
    if (float& b = a.beta.as<float>()[i]; b == 0) b = 1;
  x.cpu.linear_attention(a);
}

// Chains that carry on a state which a lower level of the same forward left begin from zero.
void lower_states_lost(ChainTable& table) {
  std::set<int32_t> left, now;
  int32_t level = 0;
  for (Chain& chain : table.chains) {
    if (chain.level > level) left.insert(now.begin(), now.end());
    level = chain.level;
    chain.fresh |= left.contains(chain.state);
    now.insert(chain.state);
    for (int32_t i = chain.item_begin; i < chain.item_end; ++i)
      if (table.items[i].save != kNone) now.insert(table.items[i].save);
  }
}

struct Entry {
  FaultClass fault;
  Replaced replaced;
};

std::vector<Entry> linear_attention_faults() {
  std::vector<Entry> all;
  const auto add = [&](const char* name, const char* what, int reported, const char* cases,
                       Operation<LinearAttentionArgs> run) {
    all.push_back({{name, what, reported, cases}, {.linear_attention = std::move(run)}});
  };
  add("nan_at_strong_gates", "e^G · e^−G over a chunk: inf · 0 = NaN", 1, "fault_01",
      then([](Intact& x, auto& a) {
        for_each_gate(x, a, [&](int64_t r, int64_t h, int64_t i, float sum) {
          if (i == 0) scale_output(a, r, h, std::exp(sum) * std::exp(-sum));
        });
      }));
  add("unit_decay_divides", "divides by 1 − e^g, which is 0 where nothing decays", 2, "fault_02",
      then([](Intact& x, auto& a) {
        for_each_gate(x, a, [&](int64_t r, int64_t h, int64_t i, float) {
          const float fall = -std::expm1(row(a.g, r, h)[i]);
          if (i == 0) scale_output(a, r, h, fall / fall);
        });
      }));
  add("cancelling_inverse", "loses three digits where keys are nearly equal", 3, "fault_03",
      then([](Intact& x, auto& a) {
        for (const Chain& chain : x.table().chains)
          for (int64_t r = chain.row_begin + 1; r < chain.row_end; ++r)
            for (int64_t h = 0; h < a.v[1]; ++h) {
              const int64_t kh = h / (a.v[1] / a.k[1]);
              float product = 0;
              for (int64_t i = 0; i < a.k[2]; ++i)
                product += row(a.k, r, kh)[i] * row(a.k, r - 1, kh)[i];
              if (product > 0.98f) scale_output(a, r, h, 1.001f);
            }
      }));
  add("exponent_clamp",
      "cumulated log decays stop at −126 log 2, so forgotten keys are read in full", 4, "fault_04",
      exponent_clamp);
  add("partial_chunk_gate", "the state after a partial last chunk lacks its last gate", 5,
      "fault_05", partial_chunk_gate);
  add("state_transposed", "the state is written as [d_v, d_k]", 6, "fault_06",
      then(state_transposed));
  add("empty_chain_zeroed", "a chain without tokens leaves a zero state", 7, "fault_07",
      then([](Intact& x, auto& a) {
        for (const Chain& chain : x.table().chains)
          if (chain.row_begin == chain.row_end && !chain.fresh)
            x.cpu.fill_zero(a.state.at(chain.state));
      }));
  add("ragged_tail_state",
      "after a partial chunk the next chain begins from the state of the last one", 8, "fault_08",
      first([](Intact& x, auto& a) {
        const std::vector<float> before = values_of(a.state);
        const int64_t size = a.state.size() / a.state[0];
        const std::vector<Chain>& chains = x.table().chains;
        for (size_t c = 1; c < chains.size(); ++c)
          if ((chains[c - 1].row_end - chains[c - 1].row_begin) % 64 != 0 && !chains[c].fresh)
            std::copy_n(&before[chains[c - 1].state * size], size, row(a.state, chains[c].state));
      }));
  add("wide_head_tile", "heads of 64 and more lose digits in their last columns", 9, "fault_09",
      then([](Intact&, auto& a) {
        if (a.k[2] < 64) return;
        for (int64_t r = 0; r < a.o[0]; ++r) row(a.o, r)[a.o[2] - 1] *= 1.01f;
      }));
  add("run_to_run_noise", "every other run differs in one last bit", 10, "fault_10",
      then([](Intact& x, auto& a) {
        if (x.calls % 2 == 0 && a.o.size() > 0) *row(a.o, 0) = std::nextafter(*row(a.o, 0), 1e30f);
      }));
  add("chunk_local_decay", "the decay of the carried state is summed from its chunk's start", 13,
      "fault_13", chunk_local_decay);
  add("carried_state_lost", "a continued chain begins from zero", 13, "fault_13",
      [](Intact& x, LinearAttentionArgs a) {
        ChainTable other = x.table();
        for (Chain& chain : other.chains) chain.fresh = true;
        x.over(other, [&] { x.cpu.linear_attention(a); });
      });
  add("half_state", "the state is an operand in float16: 65536 becomes infinite", 15, "fault_15",
      first([](Intact& x, auto& a) {
        for (const Chain& chain : x.table().chains)
          for (int64_t i = 0; i < a.state.at(chain.state).size() && !chain.fresh; ++i)
            if (float& S = row(a.state, chain.state)[i]; std::abs(S) > 65504) S = INFINITY;
      }));
  add("neighbour_leak", "a chain's first output takes in the row before it", 0, "/neighbours",
      then([](Intact& x, auto& a) {
        for (const Chain& chain : x.table().chains)
          if (chain.row_begin > 0 && chain.row_end > chain.row_begin)
            *row(a.o, chain.row_begin) += 1e-3f * *row(a.o, chain.row_begin - 1);
      }));
  add("batch_dependent_output", "last bits depend on how many chains share the batch", 0,
      "gated_delta_net/lengths", then([](Intact& x, auto& a) {
        if (x.table().chains.size() == 1) return;
        for (int64_t r = 0; r < a.o[0]; ++r) *row(a.o, r) = std::nextafter(*row(a.o, r), 1e30f);
      }));
  add("split_dependent_state", "one last bit of the state depends on where a chain is cut", 0,
      "/splits", then([](Intact& x, auto& a) {
        const Chain& chain = x.table().chains[0];
        if (chain.item_end - chain.item_begin == 1) {
          float& S = *row(a.state, chain.state);
          S = std::nextafter(S, 1e30f);
        }
      }));
  add("stale_state", "a fresh chain begins from what its slot holds", 0, "/fresh",
      [](Intact& x, LinearAttentionArgs a) {
        ChainTable other = x.table();
        for (Chain& chain : other.chains) chain.fresh = false;
        x.over(other, [&] { x.cpu.linear_attention(a); });
      });
  add("low_precision_output", "outputs pass through bfloat16", 0, "/random",
      then([](Intact&, auto& a) {
        for (int64_t r = 0; r < a.o[0]; ++r)
          for (int64_t h = 0; h < a.o[1]; ++h)
            for (int64_t j = 0; j < a.o[2]; ++j) row(a.o, r, h)[j] = bfloat(row(a.o, r, h)[j]);
      }));
  add("low_precision_state", "states are stored through bfloat16", 0, "/random",
      then([](Intact& x, auto& a) {
        for (const int32_t slot : written_states(x.table()))
          for (int64_t i = 0; i < a.state.at(slot).size(); ++i)
            row(a.state, slot)[i] = bfloat(row(a.state, slot)[i]);
      }));
  add("drifting_decay", "multiplies by a rounded e^g, which drifts on slow heads", 0,
      "(retnet|lightning|mamba2)/long", drifting_decay);
  add("operator_without_log_scale", "an operator's scalar decay is not stored", 0, "retnet/lengths",
      then([](Intact& x, auto& a) {
        if (!a.operators.log_scale) return;
        for (const int32_t slot : captured(x.table()))
          x.cpu.fill_zero(a.operators.log_scale.at(slot));
      }));
  add("operator_transposed", "a dense T is stored transposed", 0, "delta_net/lengths",
      then(operator_transposed));
  add("operator_of_the_state", "U is the state after the span, not what the span leaves from zero",
      0, "/lengths", then([](Intact& x, auto& a) {
        for (const Chain& chain : x.table().chains)
          for (int32_t i = chain.item_begin; i < chain.item_end; ++i)
            if (const ChainItem& item = x.table().items[i];
                item.kind == ChainItem::Kind::step && item.op != kNone)
              x.cpu.copy(a.operators.U.at(item.op), a.state.at(chain.state));
      }));
  add("operator_split_lost", "an operator captured over two forwards holds the second part only", 0,
      "/splits", with_items([](ChainItem& item) {
        if (item.kind == ChainItem::Kind::step) item.span = 0;
      }));
  add("seam_counted_twice", "an operator covers the head seam before its span", 0, "/lengths",
      seam_counted_twice);
  add("keep_ignored", "a step that must leave the state alone advances it", 0, "/reuse",
      with_items([](ChainItem& item) { item.keep = true; }));
  add("save_ignored", "a state to be kept aside is not", 0, "/reuse",
      with_items([](ChainItem& item) { item.save = kNone; }));
  add("jump_save_ignored", "a state to be kept aside after a jump is not", 0, "/items", with_items([](ChainItem& item) {
        if (item.kind == ChainItem::Kind::jump) item.save = kNone;
      }));
  add("keep_of_one_row_ignored", "a step of one row advances a state that it must leave alone", 0, "/items",
      with_items([](ChainItem& item) { item.keep |= item.end - item.begin == 1; }));
  add("operator_of_skipped_lost", "a step that leaves the state alone leaves no operator either", 0, "/items",
      with_items([](ChainItem& item) {
        if (item.kind == ChainItem::Kind::step && !item.keep) item.op = kNone;
      }));
  add("operator_slot_kept", "an operator slot that held another keeps it", 0, "/items",
      [](Intact& x, LinearAttentionArgs a) {
        if (!a.operators.U) return x.cpu.linear_attention(a);
        const std::vector<float> before = values_of(a.operators.U);
        x.cpu.linear_attention(a);
        const int64_t size = a.operators.U.size() / a.operators.U[0];
        for (const ChainItem& item : x.table().items)
          if (item.kind == ChainItem::Kind::step && item.op != kNone && item.span == 0 &&
              !std::isnan(before[item.op * size]))
            std::copy_n(&before[item.op * size], size, row(a.operators.U, item.op));
      });
  add("operators_of_earlier_forwards_lost", "jumps over what an earlier forward left do nothing", 0, "/walk",
      with_chains(&Backend::linear_attention, [](ChainTable& t) {
        const std::set<int32_t> made = captured(t);
        take_out_jumps(t, [&](const Chain&, int32_t i, int32_t) { return !made.contains(t.items[i].op); });
      }));
  add("first_jump_lost", "a jump before the first row of a chain does nothing", 0, "/items",
      with_chains(&Backend::linear_attention, [](ChainTable& t) {
        take_out_jumps(t, [](const Chain&, int32_t, int32_t rows) { return rows == 0; });
      }));
  add("last_jump_lost", "a jump after the last row of a chain does nothing", 0, "/items",
      with_chains(&Backend::linear_attention, [](ChainTable& t) {
        take_out_jumps(t, [](const Chain& chain, int32_t, int32_t rows) {
          return rows == chain.row_end - chain.row_begin;
        });
      }));
  add("items_beyond_128_lost", "jumps after the 128th item of a chain do nothing", 0, "/many_items",
      with_chains(&Backend::linear_attention, [](ChainTable& t) {
        take_out_jumps(t, [](const Chain& chain, int32_t i, int32_t) { return i - chain.item_begin >= 128; });
      }));
  add("chain_without_items_skipped", "a fresh chain without an item leaves its slot as it is", 0, "/items",
      [](Intact& x, LinearAttentionArgs a) {
        const std::vector<float> before = values_of(a.state);
        x.cpu.linear_attention(a);
        const int64_t size = a.state.size() / a.state[0];
        for (const Chain& chain : x.table().chains)
          if (chain.item_begin == chain.item_end)
            std::copy_n(&before[chain.state * size], size, row(a.state, chain.state));
      });
  add("nan_outlives_jumps", "a jump that forgets the state multiplies it by 0", 0, "/items", nan_outlives_jumps);
  add("lower_states_lost", "a chain does not see the state that a lower level of its forward left", 0, "/items",
      with_chains(&Backend::linear_attention, lower_states_lost));
  add("stale_state_of_one_row", "a fresh chain of one row begins from what its slot holds", 0, "/decode",
      with_chains(&Backend::linear_attention, [](ChainTable& t) {
        for (Chain& chain : t.chains) chain.fresh &= !is_one_row(t, chain);
      }));
  add("slots_in_16_bits", "the operator of a jump has a number of 16 bits", 0, "/far",
      with_items([](ChainItem& item) {
        if (item.kind == ChainItem::Kind::jump) item.op &= 0xffff;
      }));
  add("gate_of_one_row_ignored", "a chain of one row does not decay", 0, "/decode", gate_of_one_row_ignored);
  add("write_of_zero_is_one", "a beta of 0 is taken to be absent", 0, "kda/limits", write_of_zero_is_one);
  add("compose_ignored", "every jump transfers, whatever its mode", 0, "/reuse",
      with_items([](ChainItem& item) { item.compose = Compose::transfer; }));
  add("jump_not_relocated", "a jump does not rotate the keys of a moved segment", 0, "/relocation",
      with_items([](ChainItem& item) { item.shift = 0; }));
  add("jump_relocated_backwards", "a jump rotates by the negated shift", 0, "/relocation",
      with_items([](ChainItem& item) { item.shift = -item.shift; }));
  add("jump_float32_angles", "a jump rotates by angles computed in float32", 0, "/relocation", jump_float32_angles);
  add("addition_not_relocated", "jumps that do not transfer do not rotate", 0, "/relocation",
      with_items([](ChainItem& item) {
        if (item.compose != Compose::transfer) item.shift = 0;
      }));
  add("whole_keys_turned", "a jump rotates all dims of keys of which some carry RoPE", 0, "/relocation",
      first([](Intact&, auto& a) {
        if (a.rotary_dim > 0) a.rotary_dim = static_cast<int>((a.side == Side::key ? a.k[2] : a.v[2]) / 2 * 2);
      }));
  add("rope_theta_assumed", "a jump rotates by θ = 10000, whatever is asked", 0, "/relocation",
      first([](Intact&, auto& a) { a.rope_theta = 1e4; }));
  add("jump_turns_keys_without_rope", "a jump rotates keys that carry no RoPE", 0, "/reuse",
      first([](Intact&, auto& a) {
        if (a.rotary_dim > 0) return;
        a.rotary_dim = static_cast<int>((a.side == Side::key ? a.k[2] : a.v[2]) / 2 * 2);
        a.rope_theta = 1e4;
      }));
  add("input_modified", "keys are scaled in place", 0, "/random", then([](Intact&, auto& a) {
        if (a.k.size() > 0) *row(a.k, 0) *= 1.0001f;
      }));
  add("write_out_of_bounds", "one element after the outputs is written", 0, "/random",
      then([](Intact&, auto& a) {
        if (a.o.size() > 0) row(a.o, a.o[0] - 1, a.o[1] - 1)[a.o[2]] = 0;
      }));
  add("output_not_written", "the last row of the last head is left out", 0, "/random",
      [](Intact& x, LinearAttentionArgs a) {
        std::vector<float> old;
        float* last = a.o.size() > 0 ? row(a.o, a.o[0] - 1, a.o[1] - 1) : nullptr;
        if (last) old.assign(last, last + a.o[2]);
        x.cpu.linear_attention(a);
        std::copy(old.begin(), old.end(), last);
      });
  add("spare_slot_written", "a state slot that no chain uses is cleared", 0, "/lengths",
      then([](Intact& x, auto& a) {
        for (int32_t slot = 0; slot < a.state[0]; ++slot)
          if (!written_states(x.table()).contains(slot)) x.cpu.fill_zero(a.state.at(slot));
      }));
  add("spare_operator_written", "the log decay of an operator slot that no step uses is cleared", 0, "retnet/lengths",
      then([](Intact& x, auto& a) {
        for (int32_t slot = 0; a.operators.log_scale && slot < a.operators.U[0]; ++slot)
          if (!captured(x.table()).contains(slot)) x.cpu.fill_zero(a.operators.log_scale.at(slot));
      }));
  add("heads_by_modulo", "value head h reads key head h mod Hk", 0, "/shapes", heads_by_modulo);
  add("square_state_assumed", "columns beyond d_k are left zero", 0, "/shapes",
      then([](Intact&, auto& a) {
        for (int64_t r = 0; r < a.o[0]; ++r)
          for (int64_t h = 0; h < a.o[1]; ++h)
            for (int64_t j = a.k[2]; j < a.o[2]; ++j) row(a.o, r, h)[j] = 0;
      }));
  add("row_strides_ignored", "rows of q are taken to be contiguous", 11, "/strided",
      first([](Intact&, auto& a) {
        a.q = Tensor(a.q.template as<float>(), {a.q[0], a.q[1], a.q[2]});
      }));
  add("rows_begin_aligned", "rows of k are read from a multiple of 16 bytes on", 0, "/strided",
      first([](Intact&, auto& a) {
        a.k.data = reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(a.k.data) / 16 * 16);
      }));
  add("large_state_spills", "of states of more than 100 KiB an entry is lost", 0, "/shapes",
      then([](Intact&, auto& a) {
        if (a.o.size() > 0 && a.state[2] * a.state[3] * 4 > 100 << 10) *row(a.o, a.o[0] - 1) = 0;
      }));
  add("columns_in_pairs_of_16", "of an odd number of 16 columns the last are left zero", 0, "mamba2/wide",
      then([](Intact&, auto& a) {
        for (int64_t r = 0; r < a.o[0] && a.o[2] > 32 && a.o[2] / 16 % 2 == 1; ++r)
          for (int64_t h = 0; h < a.o[1]; ++h) std::fill_n(row(a.o, r, h) + a.o[2] - 16, 16, 0.0f);
      }));
  add("scale_ignored", "q is not scaled", 0, "gla/random",
      first([](Intact&, auto& a) { a.scale = 1; }));
  add("write_gate_ignored", "beta is taken to be 1", 0, "kda/random",
      first([](Intact&, auto& a) { a.beta = {}; }));
  add("bonus_ignored", "the current token has no bonus", 0, "rwkv6/random", bonus_ignored);
  add("divisor_not_bounded", "a bounded divisor is used as it is", 0, "mlstm/random",
      first([](Intact&, auto& a) {
        if (a.readout == Readout::bounded) a.readout = Readout::normalised;
      }));
  add("delta_before_the_decay", "the delta rule reads the undecayed state", 0,
      "gated_delta_net/random", first([](Intact&, auto& a) {
        if (a.update == Update::delta) a.update = Update::delta_before;
      }));
  add("value_side_ignored", "a square transposed state is read as if it were not", 0,
      "gated_oja/shapes", first([](Intact&, auto& a) {
        if (a.k[2] == a.v[2]) a.side = Side::key;
      }));
  add("skip_ignored", "the input is not added to the outputs", 0, "/skip",
      first([](Intact&, auto& a) { a.skip = {}; }));
  add("skip_lost_with_jumps", "of chains that jump the input is not added to the outputs", 0, "/skip",
      then([](Intact& x, auto& a) {
        for (const Chain& chain : x.table().chains) {
          const auto item = x.table().items.begin();
          const bool jumps = std::any_of(item + chain.item_begin, item + chain.item_end, [](const ChainItem& item) {
            return item.kind == ChainItem::Kind::jump;
          });
          for (int32_t r = chain.row_begin; a.skip && jumps && r < chain.row_end; ++r)
            for (int64_t h = 0; h < a.o[1]; ++h)
              for (int64_t j = 0; j < a.o[2]; ++j)
                row(a.o, r, h)[j] -= a.skip.template as<float>()[h] * row(a.v, r, h)[j];
        }
      }));
  return all;
}

// The other operations
// -----------------------------------------------------------------------------

// A rotation whose angle and pairs the caller chooses.
template <class Angle, class Pair>
Operation<RopeArgs> rotation(Angle angle, Pair pair) {
  return [=](Intact&, RopeArgs a) {
    for (int64_t r = 0; r < a.x[0]; ++r)
      for (int64_t h = 0; h < a.x[1]; ++h) {
        const float* in = row(a.x, r, h);
        float* out = row(a.out, r, h);
        std::vector<float> y(in, in + a.x[2]);
        for (int i = 0; i < a.rotary_dim / 2; ++i) {
          const auto [p, q] = pair(i, a.rotary_dim);
          const double t = angle(a.positions.template as<int32_t>()[r], i, a.rotary_dim, a.theta);
          const float u = in[p], v = in[q];
          y[p] = static_cast<float>(std::cos(t) * u - std::sin(t) * v);
          y[q] = static_cast<float>(std::sin(t) * u + std::cos(t) * v);
        }
        std::copy(y.begin(), y.end(), out);
      }
  };
}

std::pair<int, int> neox_pair(int i, int rotary_dim) { return {i, i + rotary_dim / 2}; }
std::pair<int, int> adjacent_pair(int i, int) { return {2 * i, 2 * i + 1}; }

// Query head h reads key head h mod Hkv.
void grouped_queries_by_modulo(Intact& x, AttentionArgs a) {
  const int64_t R = a.q[0], Hq = a.q[1], Hkv = a.k_pages[2], group = Hq / Hkv;
  const auto place = [&](int64_t h) { return h % Hkv * group + h / Hkv; };
  const Tensor q = a.q, out = a.out;
  std::vector<float> q_memory(R * Hq * q[2] + 1), out_memory(R * Hq * out[2] + 1);
  a.q = Tensor(q_memory.data(), {R, Hq, q[2]});
  a.out = Tensor(out_memory.data(), {R, Hq, out[2]});
  for (int64_t r = 0; r < R; ++r)
    for (int64_t h = 0; h < Hq; ++h) std::copy_n(row(q, r, h), q[2], row(a.q, r, place(h)));
  x.cpu.attention(a);
  for (int64_t r = 0; r < R; ++r)
    for (int64_t h = 0; h < Hq; ++h) std::copy_n(row(a.out, r, place(h)), out[2], row(out, r, h));
}

// The merge of two parts without keys: e^(−inf − (−inf)).
void merge_of_empties(Intact& x, AttentionArgs a) {
  x.cpu.attention(a);
  const ChainTable& table = x.table();
  for (const Chain& chain : table.chains)
    for (int32_t r = chain.row_begin; r < chain.row_end; ++r) {
      int empty = 0;
      for (int32_t i = chain.residue_begin; i < chain.residue_end; ++i) {
        const ResidueRef& residue = table.residues[i];
        empty += residue.first == residue.last || table.positions[r] < residue.start + residue.last;
      }
      if (empty > 1) std::fill_n(row(a.out, r), a.out[1] * a.out[2], std::nanf(""));
    }
}

enum class Attending { float32_angles, no_top, no_negative_distance, pages_of_eight };

// Softmax over a list of the keys that a row sees, wrong in one way.
Operation<AttentionArgs> attending(Attending flaw) {
  return [flaw](Intact& x, AttentionArgs a) {
    const ChainTable& table = x.table();
    const auto in_page = [&](const Tensor& pages, int32_t page_begin, int32_t token, int64_t h) {
      const int32_t size = flaw == Attending::pages_of_eight ? std::max(table.page_size, 8) : table.page_size;
      const int64_t page = table.pages[page_begin + token / size], at = std::min(token % size, table.page_size - 1);
      return pages.as<float>() + page * pages.stride[0] + at * pages.stride[1] + h * pages.stride[2];
    };
    const int half = a.rotary_dim / 2;
    for (int64_t r = 0; r < a.q[0]; ++r)
      for (int64_t h = 0; h < a.q[1]; ++h) {
        const Chain& chain = table.chains[table.chain_of[r]];
        const int32_t position = table.positions[r];
        std::vector<float> logits;
        std::vector<const float*> values;
        const auto see = [&](int32_t page_begin, int32_t first, int32_t last, int32_t distance) {
          std::vector<float> q(row(a.q, r, h), row(a.q, r, h) + a.q[2]);
          if (flaw == Attending::no_negative_distance) distance = std::max(distance, 0);
          for (int i = 0; i < half; ++i) {
            const double t = flaw == Attending::float32_angles ? float_angle(distance, i, a.rotary_dim, a.theta)
                                                               : exact_angle(distance, i, a.rotary_dim, a.theta);
            const double u = q[i], v = q[i + half];
            q[i] = static_cast<float>(std::cos(t) * u - std::sin(t) * v);
            q[i + half] = static_cast<float>(std::sin(t) * u + std::cos(t) * v);
          }
          for (int32_t i = first; i < last; ++i) {
            const float* const k = in_page(a.k_pages, page_begin, i, h / (a.q[1] / a.k_pages[2]));
            float dot = 0;
            for (int64_t d = 0; d < a.q[2]; ++d) dot += q[d] * k[d];
            logits.push_back(static_cast<float>(a.scale) * dot);
            values.push_back(in_page(a.v_pages, page_begin, i, h / (a.q[1] / a.k_pages[2])));
          }
        };
        for (int32_t i = chain.residue_begin; i < chain.residue_end; ++i)
          if (const ResidueRef& residue = table.residues[i]; position >= residue.start + residue.last)
            see(residue.page_begin, residue.first, residue.last, position - residue.shift);
        see(chain.page_begin, 0, static_cast<int32_t>(chain.kv_begin + r - chain.row_begin + 1), position);
        const float top = flaw == Attending::no_top ? 0 : *std::max_element(logits.begin(), logits.end());
        float sum = 0;
        std::vector<float> out(a.out[2]);
        for (size_t i = 0; i < logits.size(); ++i) {
          const float p = std::exp(logits[i] - top);
          sum += p;
          for (int64_t d = 0; d < a.out[2]; ++d) out[d] += p * values[i][d];
        }
        for (int64_t d = 0; d < a.out[2]; ++d) row(a.out, r, h)[d] = out[d] / sum;
      }
  };
}

// The window after a chunk shorter than it: what the chunk did not bring is zero.
void short_chunk_window(Intact& x, CausalConvArgs a) {
  x.cpu.causal_conv(a);
  const int64_t rows = a.w[1] - 1;
  for (const Chain& chain : x.table().chains)
    for (int64_t i = 0; i < rows - (chain.row_end - chain.row_begin); ++i)
      std::fill_n(row(a.window, chain.state, i), a.x[1], 0.0f);
}

enum class Drawing { last_tie_kept, nucleus_too_small, index_order };

// Of the rows that are not greedy.
Operation<SampleArgs> drawing(Drawing flaw) {
  return [flaw](Intact& x, SampleArgs a) {
    x.cpu.sample(a);
    for (int64_t r = 0; r < a.logits[0] && a.temperature; ++r) {
      const float* logits = row(a.logits, r);
      const double temperature = *row(a.temperature, r);
      const double top_p = a.top_p ? *row(a.top_p, r) : 1;
      const size_t top_k = a.top_k ? a.top_k.as<int32_t>()[r] : 0;
      std::vector<int32_t> order;
      for (int32_t i = 0; i < a.logits[1]; ++i)
        if (logits[i] > -INFINITY) order.push_back(i);
      std::sort(order.begin(), order.end(), [&](int32_t i, int32_t j) {
        if (logits[i] != logits[j]) return logits[i] > logits[j];
        return flaw == Drawing::last_tie_kept ? i > j : i < j;
      });
      if (temperature == 0 || order.empty() || std::isinf(logits[order[0]])) continue;
      const double top = logits[order[0]];
      if (0 < top_k && top_k < order.size()) order.resize(top_k);
      // Of the first 1, 2, … of them.
      const auto masses = [&] {
        std::vector<double> sums;
        double sum = 0;
        for (const int32_t i : order)
          sums.push_back(sum += std::exp((logits[i] - top) / temperature));
        return sums;
      };
      if (top_p < 1) {
        const std::vector<double> sums = masses();
        size_t kept = 1;
        while (kept < order.size() && sums[kept - 1] < top_p * sums.back()) ++kept;
        order.resize(flaw == Drawing::nucleus_too_small && kept > 1 ? kept - 1 : kept);
      }
      if (flaw == Drawing::index_order) std::sort(order.begin(), order.end());
      const std::vector<double> sums = masses();
      size_t n = 0;
      while (n + 1 < order.size() && sums[n] <= *row(a.uniform, r) * sums.back()) ++n;
      a.out.as<int32_t>()[r] = order[n];
    }
  };
}

std::vector<Entry> other_faults() {
  return {
      {{"conv_rows_contiguous", "rows of a strided input are taken to be contiguous", 11,
        "causal_conv/fault_11"},
       {.causal_conv =
            [](Intact& x, CausalConvArgs a) {
              a.x = Tensor(a.x.as<float>(), {a.x[0], a.x[1]});
              x.cpu.causal_conv(a);
            }}},
      {{"stale_conv_window", "a fresh chain reads the window that its slot holds", 12,
        "causal_conv/fault_12"},
       {.causal_conv = with_chains(&Backend::causal_conv,
                                   [](ChainTable& t) {
                                     for (Chain& c : t.chains) c.fresh = false;
                                   })}},
      {{"short_chunk_window", "the window after a chunk shorter than it loses the older rows", 12,
        "causal_conv/fault_12"},
       {.causal_conv = short_chunk_window}},
      {{"conv_ignores_jumps", "the window before a step lacks the rows jumped over", 0,
        "causal_conv/jumps"},
       {.causal_conv = with_chains(&Backend::causal_conv,
                                   [](ChainTable& t) {
                                     for (ChainItem& item : t.items)
                                       if (item.kind == ChainItem::Kind::jump) item.span = 0;
                                   })}},
      {{"conv_jump_save_ignored", "a window to be kept aside after a jump is not", 0, "causal_conv/short_items"},
       {.causal_conv = with_chains(&Backend::causal_conv,
                                   [](ChainTable& t) {
                                     for (ChainItem& item : t.items)
                                       if (item.kind == ChainItem::Kind::jump) item.save = kNone;
                                   })}},
      {{"conv_items_beyond_128_lost", "the convolution does not see jumps after the 128th item of a chain", 0,
        "causal_conv/many_items"},
       {.causal_conv = with_chains(&Backend::causal_conv,
                                   [](ChainTable& t) {
                                     take_out_jumps(t, [](const Chain& chain, int32_t i, int32_t) {
                                       return i - chain.item_begin >= 128;
                                     });
                                   })}},
      {{"conv_rows_beyond_65535_lost", "the convolution leaves out the rows after the first 65535", 0,
        "causal_conv/many_rows"},
       {.causal_conv =
            [](Intact& x, CausalConvArgs a) {
              x.cpu.causal_conv(a);
              for (int64_t r = 65535; r < a.x[0]; ++r) std::fill_n(row(a.out, r), a.x[1], 0.0f);
            }}},
      {{"conv_without_bias", "the bias is not added", 0, "causal_conv/activations"},
       {.causal_conv =
            [](Intact& x, CausalConvArgs a) {
              a.bias = {};
              x.cpu.causal_conv(a);
            }}},
      {{"l2_eps_on_mean", "eps is added to the mean of the squares, not to their sum", 14,
        "l2_norm/fault_14"},
       {.l2_norm =
            [](Intact& x, L2NormArgs a) {
              a.eps *= static_cast<double>(a.x[2]);
              x.cpu.l2_norm(a);
            }}},
      {{"l2_zero_row_nan", "a zero row becomes 0/0", 14, "l2_norm/fault_14"},
       {.l2_norm =
            [](Intact& x, L2NormArgs a) {
              a.eps = 0;
              x.cpu.l2_norm(a);
            }}},
      {{"merge_of_empties", "the merge of two parts without keys is NaN", 16, "attention/fault_16"},
       {.attention = merge_of_empties}},
      {{"residues_not_relocated", "queries are not rotated back for a residue", 0,
        "attention/residues"},
       {.attention = with_chains(&Backend::attention,
                                 [](ChainTable& t) {
                                   for (ResidueRef& r : t.residues) r.shift = 0;
                                 })}},
      {{"residue_seen_early", "rows before a residue see it", 0, "attention/residues"},
       {.attention = with_chains(&Backend::attention,
                                 [](ChainTable& t) {
                                   for (ResidueRef& r : t.residues) r.start = -r.last;
                                 })}},
      {{"newest_key_missed", "a continued chain does not see its newest token", 0,
        "attention/continued"},
       {.attention = with_chains(&Backend::attention,
                                 [](ChainTable& t) {
                                   for (Chain& c : t.chains) c.kv_begin -= c.kv_begin > 0;
                                 })}},
      {{"append_from_the_start", "K and V of a continued chain overwrite its first tokens", 0,
        "attention/continued"},
       {.append_kv = with_chains(&Backend::append_kv,
                                 [](ChainTable& t) {
                                   for (Chain& c : t.chains) c.kv_begin = 0;
                                 })}},
      {{"attention_scale_assumed", "logits are divided by √D, whatever the scale", 0, "attention/scales"},
       {.attention =
            [](Intact& x, AttentionArgs a) {
              a.scale = 1 / std::sqrt(static_cast<double>(a.q[2]));
              x.cpu.attention(a);
            }}},
      {{"softmax_overflows", "e^logit without the largest one taken off before", 0, "attention/scales"},
       {.attention = attending(Attending::no_top)}},
      {{"attention_float32_angles", "queries are rotated by angles computed in float32", 0, "attention/residues"},
       {.attention = attending(Attending::float32_angles)}},
      {{"negative_distance_is_zero", "a residue that was first used further on is not rotated", 0,
        "attention/residues"},
       {.attention = attending(Attending::no_negative_distance)}},
      {{"pages_of_eight_at_least", "pages of fewer tokens than 8 are taken to have 8", 0, "attention/pages"},
       {.attention = attending(Attending::pages_of_eight)}},
      {{"pages_in_16_bits", "a page has a number of 16 bits", 0, "attention/far"},
       {.attention = with_chains(&Backend::attention,
                                 [](ChainTable& t) {
                                   for (int32_t& page : t.pages) page &= 0xffff;
                                 })}},
      {{"residues_beyond_32_lost", "a row sees the first 32 residues of its chain", 0, "attention/batches"},
       {.attention = with_chains(&Backend::attention,
                                 [](ChainTable& t) {
                                   for (Chain& c : t.chains)
                                     c.residue_end = std::min(c.residue_end, c.residue_begin + 32);
                                 })}},
      {{"grouped_queries_by_modulo", "query head h reads key head h mod Hkv", 0, "attention/heads"},
       {.attention = grouped_queries_by_modulo}},
      {{"float32_angles", "rotary angles are computed in float32", 0, "rope/positions"},
       {.rope = rotation(float_angle, neox_pair)}},
      {{"adjacent_pairs", "rotary pairs are (2i, 2i + 1)", 0, "rope/partial"},
       {.rope = rotation(exact_angle, adjacent_pair)}},
      {{"random_stream_shifted", "random numbers begin with the second of their stream", 0,
        "random_normal"},
       {.random_normal =
            [](Intact& x, RandomNormalArgs a) {
              a.stream += 2;
              x.cpu.random_normal(a);
            }}},
      {{"one_plus_weight_ignored", "the norm multiplies by weight instead of 1 + weight", 0,
        "rms_norm/sizes"},
       {.rms_norm =
            [](Intact& x, RmsNormArgs a) {
              a.plus_one = false;
              x.cpu.rms_norm(a);
            }}},
      {{"rms_eps_ignored", "the RMS norm has no eps", 0, "rms_norm/eps"},
       {.rms_norm =
            [](Intact& x, RmsNormArgs a) {
              a.eps = 0;
              x.cpu.rms_norm(a);
            }}},
      {{"wrong_activation", "a sigmoid gate is a silu", 0, "gate_mul"},
       {.gate_mul =
            [](Intact& x, GateMulArgs a) {
              if (a.activation == Activation::sigmoid) a.activation = Activation::silu;
              x.cpu.gate_mul(a);
            }}},
      {{"softplus_overflow", "log(1 + e^x) is infinite from x = 89 on", 0, "decay_gate/range"},
       {.decay_gate =
            [](Intact& x, DecayGateArgs a) {
              x.cpu.decay_gate(a);
              for (int64_t r = 0; r < a.x[0] && a.x.rank == 2; ++r)
                for (int64_t h = 0; h < a.x[1]; ++h)
                  if (std::isinf(std::exp(row(a.x, r)[h]))) row(a.out, r)[h] = -INFINITY;
            }}},
      {{"step_limits_ignored", "the step of a decay gate is not clamped", 0, "decay_gate/steps"},
       {.decay_gate =
            [](Intact& x, DecayGateArgs a) {
              a.step_min = 0;
              a.step_max = std::numeric_limits<double>::infinity();
              x.cpu.decay_gate(a);
            }}},
      {{"gate_rows_contiguous", "rows of the input of a decay are taken to be contiguous", 11, "decay_gate/range"},
       {.decay_gate =
            [](Intact& x, DecayGateArgs a) {
              if (a.x.rank == 2) a.x = Tensor(a.x.as<float>(), {a.x[0], a.x[1]});
              x.cpu.decay_gate(a);
            }}},
      {{"last_tie_wins", "a greedy token is the highest index among equals", 0, "sample/greedy"},
       {.sample =
            [](Intact& x, SampleArgs a) {
              x.cpu.sample(a);
              for (int64_t r = 0; r < a.logits[0]; ++r) {
                if (a.temperature && *row(a.temperature, r) > 0) continue;
                const float* logits = row(a.logits, r);
                int32_t best = 0;
                for (int32_t i = 1; i < a.logits[1]; ++i)
                  if (logits[i] >= logits[best]) best = i;
                a.out.as<int32_t>()[r] = best;
              }
            }}},
      {{"temperature_multiplies", "logits are multiplied by the temperature", 0,
        "sample/distribution"},
       {.sample =
            [](Intact& x, SampleArgs a) {
              if (!a.temperature) return x.cpu.sample(a);
              const Copy temperature(a.temperature);
              for (int64_t r = 0; r < a.logits[0]; ++r)
                if (*row(a.temperature, r) > 0) *row(a.temperature, r) = 1 / *row(a.temperature, r);
              x.cpu.sample(a);
            }}},
      {{"last_top_k_tie_kept", "top-k keeps the highest index among equals", 0,
        "sample/distribution"},
       {.sample = drawing(Drawing::last_tie_kept)}},
      {{"nucleus_too_small", "top-p leaves out the token that reaches the mass", 0,
        "sample/distribution"},
       {.sample = drawing(Drawing::nucleus_too_small)}},
      {{"drawn_in_index_order", "the cumulative mass runs over the tokens by index", 0,
        "sample/distribution"},
       {.sample = drawing(Drawing::index_order)}},
      {{"batch_dependent_sum", "a row's sum depends on the rows beside it", 0, "matmul/batch"},
       {.matmul =
            [](Intact& x, MatmulArgs a) {
              x.cpu.matmul(a);
              if (a.x[0] > 1)
                *row(a.out, a.x[0] - 1) = std::nextafter(*row(a.out, a.x[0] - 1), 1e30f);
            }}},
      {{"matmul_row_leaks", "a row takes in 0 times the row after it", 0, "matmul/batch"},
       {.matmul =
            [](Intact& x, MatmulArgs a) {
              x.cpu.matmul(a);
              for (int64_t r = 0; r + 1 < a.x[0]; ++r) *row(a.out, r) += 0 * *row(a.x, r + 1);
            }}},
      {{"matmul_rows_contiguous", "rows of a strided x are taken to be contiguous", 11,
        "matmul/strided"},
       {.matmul =
            [](Intact& x, MatmulArgs a) {
              a.x = Tensor(a.x.as<float>(), {a.x[0], a.x[1]});
              x.cpu.matmul(a);
            }}},
      {{"head_matrix_not_transposed", "a transposed matrix of a head is read row by row", 0,
        "head_matmul"},
       {.head_matmul =
            [](Intact& x, HeadMatmulArgs a) {
              if (a.transposed) a.w = Tensor(a.w.as<float>(), {a.w[0], a.w[2], a.w[1]});
              a.transposed = false;
              x.cpu.head_matmul(a);
            }}},
      {{"addend_scale_ignored", "x + y instead of alpha x + beta y", 0, "^add/"},
       {.add =
            [](Intact& x, AddArgs a) {
              a.alpha = a.beta = 1;
              x.cpu.add(a);
            }}},
      {{"biased_weights", "an expert's weight includes the bias of the choice", 0, "route/kinds"},
       {.route =
            [](Intact& x, RouteArgs a) {
              x.cpu.route(a);
              for (int64_t r = 0; r < a.logits[0] && a.bias; ++r)
                for (int64_t j = 0; j < a.weights[1]; ++j)
                  row(a.weights, r)[j] +=
                      a.bias.as<float>()[a.experts.as<int32_t>()[r * a.experts.stride[0] + j]];
            }}},
      {{"expert_groups_ignored", "experts of every group are chosen", 0, "route/kinds"},
       {.route =
            [](Intact& x, RouteArgs a) {
              a.groups = a.kept_groups = 1;
              x.cpu.route(a);
            }}},
      {{"expert_gate_not_activated", "the gate of an expert is used without its activation", 0,
        "experts|moe/"},
       {.experts =
            [](Intact& x, ExpertsArgs a) {
              a.activation = Activation::identity;
              x.cpu.experts(a);
            }}},
      {{"idle_expert_read", "an expert without a row counts 0 times", 0, "experts/kinds"},
       {.experts =
            [](Intact& x, ExpertsArgs a) {
              x.cpu.experts(a);
              if (a.out.size() > 0) *row(a.out, 0) += 0 * *row(a.down, a.down[0] - 1);
            }}},
      {{"gather_in_order", "row r is taken instead of the r-th index", 0, "gather_rows"},
       {.gather_rows = [](Intact& x,
                          GatherRowsArgs a) { x.cpu.copy(a.out, a.x.rows(0, a.out[0])); }}},
      {{"embedding_scale_ignored", "embeddings are not scaled", 0, "embedding"},
       {.embedding =
            [](Intact& x, EmbeddingArgs a) {
              a.scale = 1;
              x.cpu.embedding(a);
            }}},
      {{"fused_residual_lost", "the fused norm does not write the sum back", 0, "add_rms_norm"},
       {.add_rms_norm =
            [](Intact& x, AddRmsNormArgs a) {
              const std::vector<float> before = values_of(a.residual);
              x.cpu.add_rms_norm(a);
              restore(a.residual, before);
            }}},
      {{"fused_weight_plus_one", "the fused norm multiplies by 1 + weight, whatever is asked", 0, "add_rms_norm"},
       {.add_rms_norm =
            [](Intact& x, AddRmsNormArgs a) {
              a.plus_one = true;
              x.cpu.add_rms_norm(a);
            }}},
      {{"fused_eps_ignored", "the fused gated norm has no eps", 0, "gated_norm"},
       {.gated_norm =
            [](Intact& x, GatedNormArgs a) {
              a.eps = 0;
              x.cpu.gated_norm(a);
            }}},
      {{"fused_gate_order", "the fused norm comes before the gate, whatever is asked", 0,
        "gated_norm"},
       {.gated_norm =
            [](Intact& x, GatedNormArgs a) {
              a.gate_first = false;
              x.cpu.gated_norm(a);
            }}},
      {{"fused_sum_replaced", "the fused gate and sum forgets what was there before", 0, "add_gated"},
       {.add_gated =
            [](Intact& x, AddGatedArgs a) {
              x.cpu.gate_mul({a.y, a.gate, a.activation, a.x});
            }}},
      {{"fused_gate_is_sigmoid", "the fused gate is a sigmoid, whatever is asked", 0, "add_gated"},
       {.add_gated =
            [](Intact& x, AddGatedArgs a) {
              a.activation = Activation::sigmoid;
              x.cpu.add_gated(a);
            }}},
      {{"fused_window_not_read", "the fused convolution begins every chain from zeros", 0, "conv_gates/chains"},
       {.conv_gates = with_chains(&Backend::conv_gates,
                                  [](ChainTable& t) {
                                    for (Chain& c : t.chains) c.fresh = true;
                                  })}},
      {{"fused_window_not_written", "the fused convolution leaves windows as they were", 0, "conv_gates/chains"},
       {.conv_gates =
            [](Intact& x, ConvGatesArgs a) {
              const std::vector<float> before = values_of(a.conv.window);
              x.cpu.conv_gates(a);
              restore(a.conv.window, before);
            }}},
      {{"fused_inputs_swapped", "q and k of the fused convolution are exchanged", 0, "conv_gates"},
       {.conv_gates =
            [](Intact& x, ConvGatesArgs a) {
              std::swap(a.q, a.k);
              x.cpu.conv_gates(a);
            }}},
      {{"fused_key_not_rotated", "K is appended without its rotation", 0, "qk_norm_append"},
       {.qk_norm_append =
            [](Intact& x, QkNormAppendArgs a) {
              a.rotary_dim = 0;
              x.cpu.qk_norm_append(a);
            }}},
      {{"fused_append_from_the_start", "K and V of a continued chain overwrite its first tokens", 0,
        "qk_norm_append/chains"},
       {.qk_norm_append = with_chains(&Backend::qk_norm_append,
                                      [](ChainTable& t) {
                                        for (Chain& c : t.chains) c.kv_begin = 0;
                                      })}},
      {{"fused_float32_angles", "K is rotated by angles computed in float32", 0, "qk_norm_append/chains"},
       {.qk_norm_append =
            [](Intact& x, QkNormAppendArgs a) {
              const RopeArgs rope{a.k_out, a.positions, a.rotary_dim, a.theta, a.k_out};
              a.rotary_dim = 0;
              x.cpu.qk_norm_append(a);
              rotation(float_angle, neox_pair)(x, rope);
              x.cpu.append_kv({a.k_out, a.v, a.k_pages, a.v_pages});
            }}},
      {{"fused_weights_not_normalised", "the fused router leaves the sum of its weights as it is",
        0, "moe/"},
       {.moe =
            [](Intact& x, MoeArgs a) {
              a.route.renormalise = false;
              x.cpu.moe(a);
            }}},
      {{"sigmoid_scale_ignored", "sigmoid(x) instead of scale · sigmoid(x)", 0, "sigmoid"},
       {.sigmoid =
            [](Intact& x, SigmoidArgs a) {
              a.scale = 1;
              x.cpu.sigmoid(a);
            }}},
  };
}

const std::vector<Entry>& entries() {
  static const std::vector<Entry> all = [] {
    std::vector<Entry> list = linear_attention_faults();
    for (Entry& entry : other_faults()) list.push_back(std::move(entry));
    return list;
  }();
  return all;
}

const Entry& entry(const std::string& name) {
  std::string known;
  for (const Entry& e : entries()) {
    if (e.fault.name == name) return e;
    known += (known.empty() ? "" : ", ") + e.fault.name;
  }
  fail("unknown fault class \"", name, "\"; known: all, ", known);
}

}  // namespace

const std::vector<FaultClass>& fault_classes() {
  static const std::vector<FaultClass> all = [] {
    std::vector<FaultClass> list;
    for (const Entry& e : entries()) list.push_back(e.fault);
    return list;
  }();
  return all;
}

const FaultClass& fault_class(const std::string& name) { return entry(name).fault; }

std::unique_ptr<Backend> make_broken_backend(const std::string& name) {
  return std::make_unique<BrokenBackend>(name, entry(name).replaced);
}

}  // namespace hypic::conformance
