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
  all.push_back({str("causal_conv/D", C, "_k", W, "_silu/T", T), [=](Job& job) {
                   const CausalConvArgs a{.x = job.normal({T, C}),
                                          .w = job.normal({C, W}, 0.5),
                                          .activation = Activation::silu,
                                          .window = job.output("window", {1, W - 1, C}),
                                          .tail = job.normal({1, W - 1, C}),
                                          .out = job.output("out", {T, C})};
                   ChainTable table = conformance::Plan().chain(0, true).step(T).table(1);
                   job.begin(std::move(table), 1, 1, 0);
                   job.cost = causal_conv_cost(a, job.table());
                   job.enqueue = [&job, a] { job.backend.causal_conv(a); };
                 }});
}

}  // namespace hypic::bench
