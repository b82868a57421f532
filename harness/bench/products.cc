// Products with weights, and the convolution: what is left of a layer's arithmetic.
#include <string>

#include "core/check.h"
#include "harness/bench/job.h"
#include "harness/cases/layer.h"

namespace hypic::bench {
namespace {

void product(Job& job, int64_t R, int64_t K, int64_t N, bool wide_out = false) {
  const MatmulArgs a{.x = job.normal({R, K}),
                     .w = job.normal({N, K}, 0.02),
                     .out = wide_out ? job.state_output("out", {R, N}) : job.output("out", {R, N})};
  job.cost = matmul_cost(a);
  job.enqueue = [&job, a] { job.backend.matmul(a); };
}

}  // namespace

Bench copy_bench(const Sizes& sizes) {
  const int64_t mib = sizes(1024, 16);
  return {str("ceiling/copy/", mib, "_MiB"), [=](Job& job) {
            const int64_t n = (mib << 20) / size_of(job.backend.compute_dtype());
            const Tensor from = job.normal({n >> 10, 1 << 10}),
                         to = job.output("copy", {n >> 10, 1 << 10});
            job.cost.bytes = bytes_of({from, to});
            job.enqueue = [&job, from, to] { job.backend.copy(to, from); };
            job.graph = false;  // as a node of a graph it has run at two thirds of the rate
          }};
}

Bench product_bench(const Sizes& sizes) {
  const int64_t n = sizes(8192, 256);
  return {str("ceiling/matmul/", n), [=](Job& job) { product(job, n, n, n); }};
}

void add_products(std::vector<Bench>& all, const Sizes& sizes) {
  // Those of a layer of Qwen3.5-35B-A3B; shapes that come twice are named once.
  struct Product {
    const char* name;
    int64_t K, N;
    bool wide_out = false;
  };
  constexpr Product kProducts[] = {
      {"linear.in", 2048, 12352},     // [q | k | v | z | decay | beta]
      {"linear.out", 4096, 2048},     // and attention.o
      {"attention.in", 2048, 9216},   // [q and gate | k | v]
      {"moe.router", 2048, 256, true},
      {"moe.shared.in", 2048, 1032},  // [up | gate | shared_gate, padded]
      {"moe.shared.down", 512, 2048},
  };
  for (const Product& p : kProducts)
    for (const int64_t R :
         sizes.small ? std::vector<int64_t>{9} : std::vector<int64_t>{576, 8192}) {
      const int64_t K = sizes(p.K, p.K / 32), N = sizes(p.N, p.N / 32), wide = p.wide_out;
      all.push_back({str("matmul/", p.name, "/K", K, "_N", N, "/R", R),
                     [=](Job& job) { product(job, R, K, N, wide); }});
    }

  const int64_t C = sizes(8192, 64), T = sizes(32768, 100), W = 4;
  // Alone, and with the norms and gates of a layer: one chain over all rows, and a request that hits every segment.
  const int64_t segments = sizes(64, 3), seam = 8, length = sizes(512, 40), question = sizes(64, 5);
  conformance::Plan whole, reuse;
  whole.chain(0, true).step(T);
  reuse.chain(0, true);
  for (int32_t i = 0; i < segments; ++i) reuse.step(seam).jump(i, length - seam);
  reuse.step(question);
  const auto conv = [=](Job& job, int64_t R) {
    return CausalConvArgs{.x = job.normal({R, C}),
                          .w = job.normal({C, W}, 0.5),
                          .activation = Activation::silu,
                          .window = job.output("window", {1, W - 1, C}),
                          .tail = job.normal({segments, W - 1, C}),
                          .out = job.normal({R, C})};
  };
  for (const auto& [name, plan] : {std::pair{str("T", T), whole}, {str(segments, "x", seam, "_rows"), reuse}}) {
    all.push_back({str("causal_conv/D", C, "_k", W, "_silu/", name), [=](Job& job) {
                     const CausalConvArgs a = conv(job, plan.tokens());
                     job.watch("out", a.out);
                     job.begin(plan.table(1), 1, segments, 0);
                     job.cost = causal_conv_cost(a, job.table());
                     job.enqueue = [&job, a] { job.backend.causal_conv(a); };
                   }});
    all.push_back({str("conv_gates/D", C, "_k", W, "_silu/", name), [=](Job& job) {
                     const int64_t R = plan.tokens(), d = sizes(128, 8), Hk = C / 4 / d, Hv = C / 2 / d;
                     const ConvGatesArgs a{.conv = conv(job, R),
                                           .key_heads = static_cast<int>(Hk),
                                           .key_dim = static_cast<int>(d),
                                           .l2_eps = 1e-6,
                                           .q = job.output("q", {R, Hk, d}),
                                           .k = job.output("k", {R, Hk, d}),
                                           .decay = {.x = job.normal({R, Hv}),
                                                     .A_log = job.state_normal({Hv}, 1),
                                                     .dt_bias = job.state_normal({Hv}, 1),
                                                     .out = job.state_output("g", {R, Hv})},
                                           .beta = {.x = job.normal({R, Hv}),
                                                    .out = job.state_output("beta", {R, Hv})}};
                     job.begin(plan.table(1), 1, segments, 0);
                     job.cost = causal_conv_cost(a.conv, job.table());
                     job.cost.bytes += bytes_of({a.decay.x, a.decay.out, a.beta.x, a.beta.out});
                     job.enqueue = [&job, a] { job.backend.conv_gates(a); };
                   }});
  }
}

}  // namespace hypic::bench
