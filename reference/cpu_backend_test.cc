#include "reference/cpu_backend.h"

#include <gtest/gtest.h>

#include "reference/ops/testing.h"

namespace hypic::reference {
namespace {

class CpuBackendTest : public testing::TestWithParam<bool> {
 protected:
  std::unique_ptr<Backend> backend = GetParam() ? make_cpu64_backend() : make_cpu_backend();
  DType dtype = backend->compute_dtype();

  Buffer fresh(std::initializer_list<int64_t> shape) { return Buffer(*backend, dtype, shape); }
  Buffer filled(std::initializer_list<int64_t> shape, uint64_t seed) {
    Buffer buffer = fresh(shape);
    const Owned<double> wide = random<double>(shape, seed);
    const Owned<float> single = random<float>(shape, seed);
    backend->upload(buffer, GetParam() ? wide.tensor.data : single.tensor.data);
    return buffer;
  }
  Buffer numbers(const std::vector<int32_t>& values) {
    Buffer buffer(*backend, DType::i32, {static_cast<int64_t>(values.size())});
    backend->upload(buffer, values.data());
    return buffer;
  }
};

INSTANTIATE_TEST_SUITE_P(Widths, CpuBackendTest, testing::Bool(),
                         [](const auto& info) { return info.param ? "cpu64" : "cpu"; });

TEST_P(CpuBackendTest, SaysWhatItIs) {
  EXPECT_EQ(backend->name(), GetParam() ? "cpu64" : "cpu");
  EXPECT_EQ(backend->compute_dtype(), GetParam() ? DType::f64 : DType::f32);
  EXPECT_EQ(backend->state_dtype(), backend->compute_dtype());
  EXPECT_GT(backend->available_bytes(), size_t{1} << 20);
}

TEST_P(CpuBackendTest, MemoryIsNaNAtFirst) {
  const Buffer buffer = fresh({3, 7});
  for (const double x : elements(buffer)) EXPECT_TRUE(std::isnan(x));
#ifndef __SANITIZE_ADDRESS__  // which ends the process instead
  EXPECT_THROW(backend->allocate(size_t{1} << 60), Error);
#endif
}

TEST_P(CpuBackendTest, MovesBytes) {
  const std::vector<int32_t> values = {1, -2, 3, 4};
  const Buffer a = numbers(values), b(*backend, DType::i32, {4}),
               nothing(*backend, DType::i32, {0});
  backend->copy(b, a);
  std::vector<int32_t> back(4);
  backend->download(back.data(), b);
  EXPECT_EQ(back, values);
  backend->fill_zero(b.tensor().rows(1, 3));
  backend->download(back.data(), b);
  EXPECT_EQ(back, (std::vector<int32_t>{1, 0, 0, 4}));
  backend->copy(nothing, a.tensor().rows(2, 2));
  backend->upload(nothing, nullptr);
  backend->download(nullptr, nothing);
  EXPECT_THROW(backend->copy(b, a.tensor().rows(0, 3)), InternalError);
  EXPECT_THROW(backend->copy(fresh({4}), a), InternalError);
  const Buffer matrix = fresh({2, 4});
  EXPECT_THROW(backend->fill_zero(matrix.tensor().columns(0, 2)), InternalError);
  EXPECT_THROW(backend->upload(matrix.tensor().columns(0, 2), values.data()), InternalError);
  EXPECT_THROW(backend->download(back.data(), matrix.tensor().columns(0, 2)), InternalError);
}

// Up to three axes, each with its own stride; nothing beside the view is written.
TEST_P(CpuBackendTest, CopiesStridedViews) {
  const Buffer from = filled({3, 4, 10}, 1), to = filled({3, 4, 7}, 2), dense = fresh({3, 4, 5});
  const std::vector<double> left = elements(to.tensor().columns(0, 1)),
                            right = elements(to.tensor().columns(6, 7));
  const Tensor part = from.tensor().columns(3, 8), into = to.tensor().columns(1, 6);
  backend->copy(into, part);
  EXPECT_EQ(elements(into), elements(part));
  EXPECT_EQ(elements(to.tensor().columns(0, 1)), left);
  EXPECT_EQ(elements(to.tensor().columns(6, 7)), right);
  backend->copy(dense, part);
  EXPECT_EQ(elements(dense), elements(part));
  backend->copy(into, dense);
  EXPECT_EQ(elements(into), elements(part));
  backend->copy(to.tensor().at(2).columns(0, 5), part.at(0));  // two axes
  EXPECT_EQ(elements(to.tensor().at(2).columns(0, 5)), elements(part.at(0)));
  EXPECT_THROW(backend->copy(into, dense.tensor().columns(0, 4)), InternalError);
  Tensor scattered = from.tensor().at(0).at(0).rows(0, 5);
  scattered.stride[0] = 2;
  EXPECT_THROW(backend->copy(dense.tensor().at(0).at(0), scattered), InternalError);
}

// A leak or a second release shows under the address sanitizer.
TEST_P(CpuBackendTest, BuffersOwnTheirMemoryOnce) {
  Buffer empty;
  EXPECT_FALSE(empty);
  EXPECT_FALSE(empty.tensor());
  Buffer a = filled({2, 3}, 1);
  const void* memory = a.tensor().data;
  const std::vector<double> held = elements(a);
  Buffer b(std::move(a));
  EXPECT_FALSE(a);
  EXPECT_EQ(b.tensor().data, memory);
  Buffer c = filled({1}, 2);
  c = std::move(b);
  EXPECT_EQ(c.tensor().data, memory);
  EXPECT_EQ(elements(c), held);
  c = fresh({4});
  EXPECT_EQ(c.tensor().shape_string(), "[4]");
  std::vector<Buffer> many;
  for (int i = 0; i < 9; ++i) many.push_back(filled({1 + i}, i));
  EXPECT_EQ(many[8].tensor()[0], 9);
  const Buffer none = fresh({0, 3});
  EXPECT_TRUE(none);
  EXPECT_EQ(none.tensor().size(), 0);
}

TEST_P(CpuBackendTest, ChainOperationsNeedATable) {
  const Buffer x = filled({2, 2, 4}, 1), pages = fresh({1, 16, 2, 4});
  EXPECT_THROW(backend->append_kv({x, x, pages, pages}), InternalError);
  ChainTable table = one_chain({}, {step(2)});
  table.pages = {0};
  backend->begin(table);
  EXPECT_NO_THROW(backend->append_kv({x, x, pages, pages}));
}

// Every element of every output is written, from memory that was NaN before.
TEST_P(CpuBackendTest, OperationsWriteTheirWholeOutput) {
  const int64_t R = 5, N = 6, K = 7, H = 2, D = 4;
  ChainTable table = one_chain({.state = 0}, {step(2), step(3, 0)});
  table.pages = {0};
  backend->begin(table);
  const Buffer tokens = numbers({0, 1, 2, 3, 4}), x = filled({R, K}, 1), rows = filled({R, N}, 2),
               w = filled({N, K}, 3), heads = filled({R, H, D}, 4), scalars = filled({R, H}, 5),
               per_head = filled({H}, 6);
  const auto written = [&](const char* name, std::initializer_list<int64_t> shape, auto run) {
    const Buffer out = fresh(shape);
    run(out.tensor());
    EXPECT_TRUE(finite(out)) << name;
  };
  written("embedding", {R, N}, [&](const Tensor& out) { backend->embedding({tokens, rows, out}); });
  written("matmul", {R, N}, [&](const Tensor& out) { backend->matmul({x, w, out}); });
  written("rms_norm", {R, H, D}, [&](const Tensor& out) {
    backend->rms_norm({heads, filled({D}, 7), true, 1e-6, out});
  });
  written("l2_norm", {R, H, D}, [&](const Tensor& out) { backend->l2_norm({heads, 1e-6, out}); });
  written("gate_mul", {R, N}, [&](const Tensor& out) {
    backend->gate_mul({rows, rows, Activation::silu, out});
  });
  written("decay_gate", {R, H}, [&](const Tensor& out) {
    backend->decay_gate({scalars, per_head, per_head, out});
  });
  written("sigmoid", {R, H}, [&](const Tensor& out) { backend->sigmoid({scalars, out}); });
  written("rope", {R, H, D}, [&](const Tensor& out) {
    backend->rope({heads, tokens, 2, 1e4, out});
  });
  written("gather_rows", {2, N}, [&](const Tensor& out) {
    backend->gather_rows({rows, numbers({4, 0}), out});
  });
  written("attention", {R, H, D}, [&](const Tensor& out) {
    const Buffer k_pages = fresh({1, 16, H, D}), v_pages = fresh({1, 16, H, D});
    backend->append_kv({heads, heads, k_pages, v_pages});
    backend->attention({heads, k_pages, v_pages, 2, 1e4, 1, out});
  });
  written("causal_conv", {R, K}, [&](const Tensor& out) {
    const Buffer window = fresh({1, 3, K}), tail = fresh({1, 3, K});
    backend->causal_conv({x, filled({K, 4}, 8), Activation::silu, window, tail, out});
    EXPECT_TRUE(finite(window));
    EXPECT_TRUE(finite(tail));
  });
  written("linear_attention", {R, H, D}, [&](const Tensor& out) {
    const Buffer state = fresh({1, H, D, D}), U = fresh({1, H, D, D}), T = fresh({1, H, D, D}),
                 scale = fresh({1, H});
    LinearAttentionArgs args{};
    args.decay = Decay::scalar;
    args.update = Update::delta;
    args.scale = 1;
    args.q = args.k = args.v = heads;
    args.g = args.beta = scalars;
    args.state = state;
    args.operators = {OperatorKind::dense, scale, T, U};
    args.o = out;
    backend->linear_attention(args);
    for (const Buffer* part : {&state, &U, &T, &scale}) EXPECT_TRUE(finite(*part));
  });
  written("head_matmul", {R, H, N}, [&](const Tensor& out) {
    for (const bool transposed : {false, true})
      backend->head_matmul(
          {heads, transposed ? filled({H, D, N}, 9) : filled({H, N, D}, 9), transposed, out});
  });
  const Buffer chosen(*backend, DType::i32, {R, 2}), weights = fresh({R, 2});
  backend->route({.logits = rows,
                  .score = RouteArgs::Score::softmax,
                  .renormalise = true,
                  .experts = chosen,
                  .weights = weights});
  EXPECT_TRUE(finite(weights));
  for (const double e : elements(chosen)) EXPECT_TRUE(0 <= e && e < N);
  written("experts", {R, K}, [&](const Tensor& out) {
    backend->experts({x, chosen, weights, filled({N, 2 * D, K}, 10), filled({N, K, D}, 11), true,
                      Activation::silu, out});
  });
  const Buffer token(*backend, DType::i32, {R});
  backend->sample({.logits = rows, .out = token});
  for (const double i : elements(token)) EXPECT_TRUE(0 <= i && i < N);
  backend->all_reduce(rows);
}

// Composites against the primitives that their comments name.

TEST_P(CpuBackendTest, AddRmsNorm) {
  const Buffer residual = filled({3, 8}, 1), same = filled({3, 8}, 1), update = filled({3, 8}, 2),
               w = filled({8}, 3), out = fresh({3, 8}), expected = fresh({3, 8});
  backend->add_rms_norm({residual, update, w, true, 1e-6, out});
  backend->add({same, update});
  backend->rms_norm({same, w, true, 1e-6, expected});
  EXPECT_EQ(elements(residual), elements(same));
  EXPECT_EQ(elements(out), elements(expected));
  backend->add_rms_norm({residual, {}, w, true, 1e-6, out});  // no update: only the norm
  EXPECT_EQ(elements(residual), elements(same));
  EXPECT_EQ(elements(out), elements(expected));
  backend->add_rms_norm({residual, update, w, false, 1e-6, out, 0.25});
  backend->add({same, update, 1, 0.25});
  backend->rms_norm({same, w, false, 1e-6, expected});
  EXPECT_EQ(elements(residual), elements(same));
  EXPECT_EQ(elements(out), elements(expected));
}

TEST_P(CpuBackendTest, AddGated) {
  const Buffer x = filled({3, 8}, 1), y = filled({3, 8}, 2), gate = filled({3, 1}, 3), sum = filled({3, 8}, 1),
               part = filled({3, 8}, 2);
  backend->add_gated({x, y, gate, Activation::sigmoid});
  backend->gate_mul({part, gate, Activation::sigmoid, part});
  backend->add({sum, part});
  EXPECT_EQ(elements(x), elements(sum));
}

TEST_P(CpuBackendTest, ConvGates) {
  const ChainTable table = one_chain({.state = 0}, {step(5)});
  backend->begin(table);
  const int Hk = 2, Hv = 4, dk = 3, dv = 5, C = 2 * Hk * dk + Hv * dv;
  const Buffer x = filled({5, C}, 1), w = filled({C, 4}, 2), window = fresh({1, 3, C}),
               tail = fresh({1, 3, C}), conv = fresh({5, C}), plain = fresh({5, C}),
               q = fresh({5, Hk, dk}), k = fresh({5, Hk, dk}), alpha = filled({5, Hv}, 3),
               A_log = filled({Hv}, 4), dt_bias = filled({Hv}, 5), g = fresh({5, Hv}),
               logit = filled({5, Hv}, 6), beta = fresh({5, Hv});
  const CausalConvArgs args{x, w, Activation::silu, window, tail, conv};
  backend->conv_gates({args, Hk, dk, 1e-6, q, k, {alpha, A_log, dt_bias, g}, {logit, beta}});
  backend->causal_conv({x, w, Activation::silu, window, tail, plain});
  EXPECT_EQ(elements(conv), elements(plain));
  const Buffer q_expected = fresh({5, Hk, dk}), k_expected = fresh({5, Hk, dk}),
               gates = fresh({5, Hv});
  backend->l2_norm({plain.tensor().columns(0, 6).reshape({5, Hk, dk}), 1e-6, q_expected});
  backend->l2_norm({plain.tensor().columns(6, 12).reshape({5, Hk, dk}), 1e-6, k_expected});
  EXPECT_EQ(elements(q), elements(q_expected));
  EXPECT_EQ(elements(k), elements(k_expected));
  backend->decay_gate({alpha, A_log, dt_bias, gates});
  EXPECT_EQ(elements(g), elements(gates));
  backend->sigmoid({logit, gates});
  EXPECT_EQ(elements(beta), elements(gates));
  // As Mamba-2 calls it: no norms, beta is the step of the decay; and as KDA does, a decay for each
  // channel.
  const Buffer step = fresh({5, Hv}), expected_step = fresh({5, Hv});
  const std::vector<double> before = elements(q);
  backend->conv_gates(
      {args, Hk, dk, 1e-6, {}, {}, {alpha, A_log, dt_bias, g, step, 0.5, 1}, {{}, step}});
  backend->decay_gate({alpha, A_log, dt_bias, gates, expected_step, 0.5, 1});
  EXPECT_EQ(elements(g), elements(gates));
  EXPECT_EQ(elements(step), elements(expected_step));
  EXPECT_EQ(elements(q), before);
  const Buffer wide = filled({5, Hv, dk}, 7), bias = filled({Hv, dk}, 8), out = fresh({5, Hv, dk}),
               wide_expected = fresh({5, Hv, dk});
  backend->conv_gates({args, Hk, dk, 1e-6, q, k, {wide, A_log, bias, out}, {logit, beta, 2}});
  backend->decay_gate({wide, A_log, bias, wide_expected});
  EXPECT_EQ(elements(out), elements(wide_expected));
  backend->sigmoid({logit, gates, 2});
  EXPECT_EQ(elements(beta), elements(gates));
}

TEST_P(CpuBackendTest, QkNormAppend) {
  ChainTable table = one_chain({}, {step(3)}, 40);
  table.pages = {0};
  backend->begin(table);
  const Buffer q = filled({3, 4, 16}, 1), k = filled({3, 2, 8}, 2), v = filled({3, 2, 8}, 3),
               qw = filled({8}, 4), kw = filled({8}, 5), positions = numbers({40, 41, 42}),
               k_pages = fresh({1, 16, 2, 8}), v_pages = fresh({1, 16, 2, 8}),
               q_out = fresh({3, 4, 8}), k_out = fresh({3, 2, 8}), normed = fresh({3, 2, 8}),
               expected = fresh({3, 2, 8}), q_expected = fresh({3, 4, 8});
  const Tensor q_half = q.tensor().columns(0, 8);
  backend->qk_norm_append(
      {q_half, k, v, qw, kw, true, 1e-6, positions, 4, 1e4, k_pages, v_pages, q_out, k_out});
  backend->rms_norm({q_half, qw, true, 1e-6, q_expected});
  backend->rms_norm({k, kw, true, 1e-6, normed});
  backend->rope({normed, positions, 4, 1e4, expected});
  EXPECT_EQ(elements(q_out), elements(q_expected));
  EXPECT_EQ(elements(k_out), elements(expected));
  EXPECT_EQ(elements(k_pages.tensor().at(0).rows(0, 3)), elements(expected));
  EXPECT_EQ(elements(v_pages.tensor().at(0).rows(0, 3)), elements(v));
}

// One norm over all heads as one vector; none; no rotation.
TEST_P(CpuBackendTest, QkNormAppendInOtherForms) {
  ChainTable table = one_chain({}, {step(3)}, 40);
  table.pages = {0};
  backend->begin(table);
  const Buffer q = filled({3, 4, 16}, 1), k = filled({3, 2, 8}, 2), v = filled({3, 2, 8}, 3),
               q_dense = filled({3, 4, 8}, 6), qw = filled({32}, 4), kw = filled({16}, 5),
               positions = numbers({40, 41, 42}), k_pages = fresh({1, 16, 2, 8}),
               v_pages = fresh({1, 16, 2, 8}), q_out = fresh({3, 4, 8}), k_out = fresh({3, 2, 8}),
               expected = fresh({3, 2, 8}), q_expected = fresh({3, 4, 8});
  backend->qk_norm_append(
      {q_dense, k, v, qw, kw, false, 1e-6, positions, 4, 1e4, k_pages, v_pages, q_out, k_out});
  backend->rms_norm(
      {q_dense.tensor().reshape({3, 32}), qw, false, 1e-6, q_expected.tensor().reshape({3, 32})});
  backend->rms_norm(
      {k.tensor().reshape({3, 16}), kw, false, 1e-6, expected.tensor().reshape({3, 16})});
  backend->rope({expected, positions, 4, 1e4, expected});
  EXPECT_EQ(elements(q_out), elements(q_expected));
  EXPECT_EQ(elements(k_pages.tensor().at(0).rows(0, 3)), elements(expected));

  const Tensor q_half = q.tensor().columns(0, 8);
  backend->qk_norm_append(
      {q_half, k, v, {}, {}, false, 1e-6, positions, 0, 0, k_pages, v_pages, q_out, k_out});
  EXPECT_EQ(elements(q_out), elements(q_half));
  EXPECT_EQ(elements(k_pages.tensor().at(0).rows(0, 3)), elements(k));
  // K in place, as the forward calls it.
  backend->rope({k, positions, 8, 1e4, expected});
  backend->qk_norm_append(
      {q_half, k, v, {}, {}, false, 1e-6, positions, 8, 1e4, k_pages, v_pages, q_out, k});
  EXPECT_EQ(elements(k), elements(expected));
  EXPECT_EQ(elements(k_pages.tensor().at(0).rows(0, 3)), elements(expected));
}

TEST_P(CpuBackendTest, GatedNorm) {
  const Buffer x = filled({3, 2, 8}, 1), w = filled({8}, 2), gate = filled({3, 2, 8}, 3),
               out = fresh({3, 2, 8}), expected = fresh({3, 2, 8});
  backend->gated_norm({x, w, 1e-6, gate, Activation::silu, out});
  backend->rms_norm({x, w, false, 1e-6, expected});
  backend->gate_mul({expected, gate, Activation::silu, expected});
  EXPECT_EQ(elements(out), elements(expected));
  backend->gated_norm({x, w, 1e-6, gate, Activation::silu, x});  // as the forward calls it
  EXPECT_EQ(elements(x), elements(expected));
}

TEST_P(CpuBackendTest, GatedNormInOtherForms) {
  const Buffer x = filled({3, 2, 8}, 1), w = filled({2, 8}, 2), gate = filled({3, 2, 8}, 3),
               out = fresh({3, 2, 8}), expected = fresh({3, 2, 8});
  backend->gated_norm({x, w, 1e-6, gate, Activation::sigmoid, out});  // a weight for each group
  backend->rms_norm({x, w, false, 1e-6, expected});
  backend->gate_mul({expected, gate, Activation::sigmoid, expected});
  EXPECT_EQ(elements(out), elements(expected));
  backend->gate_mul({x, gate, Activation::silu, expected});
  backend->gated_norm({x, {}, 1e-6, gate, Activation::silu, out});  // no norm
  EXPECT_EQ(elements(out), elements(expected));
  backend->gated_norm({x, {}, 1e-6, gate, Activation::silu, out, true});
  EXPECT_EQ(elements(out), elements(expected));
  backend->rms_norm({expected, w, false, 1e-6, expected});
  backend->gated_norm({x, w, 1e-6, gate, Activation::silu, out, true});
  EXPECT_EQ(elements(out), elements(expected));
  backend->gated_norm({x, w, 1e-6, gate, Activation::silu, x, true});
  EXPECT_EQ(elements(x), elements(expected));
}

TEST_P(CpuBackendTest, Moe) {
  const int64_t R = 4, N = 6, E = 5, I = 3;
  const Buffer x = filled({R, N}, 1), router = filled({E, N}, 2), bias = filled({E}, 3),
               up = filled({E, 2 * I, N}, 4), down = filled({E, N, I}, 5), logits = fresh({R, E}),
               weights = fresh({R, 2}), out = fresh({R, N}), plain_logits = fresh({R, E}),
               plain_weights = fresh({R, 2}), expected = fresh({R, N}),
               chosen(*backend, DType::i32, {R, 2}), plain_chosen(*backend, DType::i32, {R, 2});
  RouteArgs route{.logits = logits,
                  .bias = bias,
                  .score = RouteArgs::Score::sigmoid,
                  .renormalise = true,
                  .scale = 2.5,
                  .experts = chosen,
                  .weights = weights};
  backend->moe({.router = router,
                .route = route,
                .experts = {x, chosen, weights, up, down, true, Activation::silu, out}});
  backend->matmul({x, router, plain_logits});
  route.logits = plain_logits, route.experts = plain_chosen, route.weights = plain_weights;
  backend->route(route);
  backend->experts({x, plain_chosen, plain_weights, up, down, true, Activation::silu, expected});
  EXPECT_EQ(elements(chosen), elements(plain_chosen));
  EXPECT_EQ(elements(weights), elements(plain_weights));
  EXPECT_EQ(elements(out), elements(expected));
}

}  // namespace
}  // namespace hypic::reference
