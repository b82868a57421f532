// Linear attention: prefill of every kind of cell, the cold workload with its operators, the walk
// of a state over operators, and decode.
#include <cmath>
#include <string>
#include <tuple>

#include "core/check.h"
#include "harness/bench/job.h"
#include "harness/cases/layer.h"

namespace hypic::bench {
namespace {

using conformance::Plan;

struct Cell {
  Decay decay;
  Update update;
  int64_t Hk, Hv, dk, dv;
  int64_t hard = 0;  // one log decay in so many is −100
  bool erases = false;  // b is given, a is k
};

// A layer over R rows, its chains fresh, or with random states.
LinearAttentionArgs layer(Job& job, const Cell& c, int64_t R, int64_t states, bool fresh = true) {
  LinearAttentionArgs a{.decay = c.decay,
                        .update = c.update,
                        .readout = Readout::plain,
                        .scale = 1 / std::sqrt(static_cast<double>(c.dk)),
                        .q = job.unit({R, c.Hk, c.dk}),
                        .k = job.unit({R, c.Hk, c.dk}),
                        .v = job.normal({R, c.Hv, c.dv})};
  switch (c.decay) {
    case Decay::none:
      break;
    case Decay::scalar:
      a.g = job.log_decay({R, c.Hv}, c.hard);
      break;
    case Decay::diagonal:
      a.g = job.log_decay({R, c.Hv, c.dk}, c.hard);
      break;
    case Decay::elementwise:  // the step Δ, and the rate A ≤ 0
      a.g = job.uniform({R, c.Hv, c.dv}, 1e-3, 1e-1);
      a.A = job.uniform({c.Hv, c.dk, c.dv}, -1, -1e-2);
      break;
  }
  if (c.erases) {  // b along k, for the same reason as below; Hk = Hv
    a.k = job.unit({R, c.Hk, c.dk}, 1, 7);
    a.b = job.unit({R, c.Hv, c.dk}, 0.5, 7);
  } else if (c.update == Update::delta) {
    a.beta = job.uniform({R, c.Hv}, 0.1, 0.9);
  }
  if (c.update == Update::delta_before) {  // a along b, or the state grows without bound
    a.b = job.unit({R, c.Hv, c.dk}, 1, 7);
    a.a = job.unit({R, c.Hv, c.dk}, 0.5, 7);
  }
  const Job::Shape state = {states, c.Hv, c.dk, c.dv};
  a.state = fresh ? job.state_output("the state", state) : job.state_normal(state, 0.1);
  if (!fresh) job.watch("the state", a.state);
  a.o = job.output("o", {R, c.Hv, c.dv});
  return a;
}

// The operators of a cell: to be written, or with T of a norm below 1, so that a walk over them stays finite.
TransferOperator operators(Job& job, const Cell& c, int64_t count, bool written) {
  TransferOperator all;
  all.kind = operator_kind(c.decay, c.update);
  const bool dense = all.kind == OperatorKind::dense;
  HYPIC_CHECK(dense || all.kind == OperatorKind::diagonal || all.kind == OperatorKind::elementwise);
  const Job::Shape log_scale = {count, c.Hv}, U = {count, c.Hv, c.dk, c.dv};
  Job::Shape T = {count, c.Hv, c.dk};
  if (all.kind != OperatorKind::diagonal) T.push_back(dense ? c.dk : c.dv);
  if (written) {
    if (has_log_scale(c.decay, c.update)) all.log_scale = job.state_output("the operators' log scale", log_scale);
    all.T = job.state_output("the operators' T", T);
    all.U = job.state_output("the operators' U", U);
  } else {
    if (has_log_scale(c.decay, c.update)) all.log_scale = job.uniform(log_scale, -1, -0.1);
    all.T = dense ? job.state_normal(T, 0.3 / std::sqrt(static_cast<double>(c.dk))) : job.uniform(T, 0.5, 0.9);
    all.U = job.state_normal(U, 0.1);
  }
  return all;
}

void run(Job& job, const Plan& plan, const LinearAttentionArgs& a) {
  job.begin(plan.table(1), a.state[0], a.operators.U ? a.operators.U[0] : 0, 0);
  job.cost = linear_attention_cost(a, job.table());
  job.enqueue = [&job, a] { job.backend.linear_attention(a); };
}

// One chain of T tokens from nothing.
void prefill(Job& job, const Cell& cell, int64_t T) {
  run(job, Plan().chain(0, true).step(T), layer(job, cell, T, 1));
}

// Segments that miss, each a chain with a seam before the span that its operator covers.
void cold(Job& job, const Cell& cell, int64_t segments, int64_t length, int64_t seam,
          bool with_operators) {
  Plan plan;
  for (int32_t i = 0; i < segments; ++i)
    plan.chain(i, true).step(seam).step(length - seam, with_operators ? i : kNone);
  LinearAttentionArgs a = layer(job, cell, segments * length, segments);
  if (with_operators) a.operators = operators(job, cell, segments, true);
  run(job, plan, a);
}

// A request that hits every segment: its state jumps over them all, with or without seams between.
void walk(Job& job, const Cell& cell, int64_t segments, int64_t length, int64_t seam) {
  Plan plan;
  plan.chain(0, true);
  for (int32_t i = 0; i < segments; ++i) {
    if (seam > 0) plan.step(seam);
    plan.jump(i, length - seam);
  }
  LinearAttentionArgs a = layer(job, cell, segments * seam, 1);
  a.operators = operators(job, cell, segments, false);
  run(job, plan, a);
}

// One token each of a batch, from states in memory.
void decode(Job& job, const Cell& cell, int64_t batch) {
  Plan plan;
  for (int32_t i = 0; i < batch; ++i) plan.chain(i).step(1);
  run(job, plan, layer(job, cell, batch, batch, false));
}

}  // namespace

void add_linear_attention(std::vector<Bench>& all, const Sizes& sizes) {
  const int64_t Hk = sizes(16, 2), Hv = sizes(32, 4), H = Hv, d = sizes(128, 16);
  const Cell gdn{Decay::scalar, Update::delta, Hk, Hv, d, d}, kda{Decay::diagonal, Update::delta, H, H, d, d},
      gla{Decay::diagonal, Update::add, H, H, d, d};
  const std::string grouped = str("Hk", Hk, "_Hv", Hv), single = str("H", H);
  const auto add = [&](const std::string& name, const std::function<void(Job&)>& prepare) {
    all.push_back({name, prepare});
  };
  const auto add_prefill = [&](const std::string& family, const std::string& shape,
                               const Cell& cell, std::vector<int64_t> lengths) {
    if (sizes.small) lengths = {65};
    for (const int64_t T : lengths)
      add(str(family, "/prefill/", shape, "/T", T), [=](Job& job) { prefill(job, cell, T); });
  };

  add_prefill("gated_delta_net", grouped, gdn, {512, 2048, 8192, 32768});
  const int64_t segments = sizes(64, 4), length = sizes(512, 40), seam = 8;
  const std::string shape = str(segments, "x", length);
  add(str("gated_delta_net/cold/", grouped, "/", shape, "/operators"),
      [=](Job& job) { cold(job, gdn, segments, length, seam, true); });
  add(str("gated_delta_net/cold/", grouped, "/", shape, "/no_operators"),
      [=](Job& job) { cold(job, gdn, segments, length, seam, false); });

  add_prefill("kda", single, kda, {8192, 32768});
  add_prefill("kda", single + "_hard_gates", {Decay::diagonal, Update::delta, H, H, d, d, 64},
              {8192});
  add_prefill("delta_net", single, {Decay::none, Update::delta, H, H, d, d}, {8192, 32768});
  // Lightning, RetNet and Mamba-2 are this cell.
  add_prefill("scalar_add", single, {Decay::scalar, Update::add, H, H, d, d}, {8192, 32768});
  add_prefill("gla", single, gla, {8192, 32768});
  const int64_t d7 = sizes(64, 16), channels = sizes(4096, 24);
  add_prefill("gdn2", single,
              {.decay = Decay::diagonal, .update = Update::delta, .Hk = H, .Hv = H, .dk = d, .dv = d, .erases = true},
              {8192});
  const Cell goose{Decay::diagonal, Update::delta_before, H, H, d7, d7};
  add_prefill("rwkv7", str(single, "_d", d7), goose, {2048, 8192});
  add_prefill("rwkv7", str(single, "_d", d7, "_hard_gates"), {Decay::diagonal, Update::delta_before, H, H, d7, d7, 64},
              {8192});
  add_prefill("rwkv7", single, {Decay::diagonal, Update::delta_before, H, H, d, d}, {8192, 32768});
  const Cell mamba1{Decay::elementwise, Update::add, 1, 1, 16, channels};
  const std::string N16 = str("N16_C", channels);
  add_prefill("mamba1", N16, mamba1, {2048});
  add(str("mamba1/cold/", N16, "/", shape, "/operators"),
      [=](Job& job) { cold(job, mamba1, segments, length, seam, true); });

  add(str("state_walk/", grouped, "/", segments, "_jumps"),
      [=](Job& job) { walk(job, gdn, segments, length, 0); });
  add(str("state_walk/", grouped, "/", segments, "_jumps_", seam, "_rows"),
      [=](Job& job) { walk(job, gdn, segments, length, seam); });
  for (const auto& [family, heads, cell] : {std::tuple{"kda", single, kda}, {"gla", single, gla}, {"mamba1", N16, mamba1}})
    for (const int64_t rows : {int64_t{0}, seam})
      add(str(family, "/state_walk/", heads, "/", segments, "_jumps", rows ? str("_", rows, "_rows") : ""),
          [=](Job& job) { walk(job, cell, segments, length, rows); });
  for (const int64_t batch :
       sizes.small ? std::vector<int64_t>{1, 3} : std::vector<int64_t>{1, 64, 256}) {
    add(str("gated_delta_net/decode/", grouped, "/B", batch),
        [=](Job& job) { decode(job, gdn, batch); });
    add(str("rwkv7/decode/", single, "_d", d7, "/B", batch), [=](Job& job) { decode(job, goose, batch); });
    add(str("mamba1/decode/", N16, "/B", batch), [=](Job& job) { decode(job, mamba1, batch); });
  }
}

}  // namespace hypic::bench
