// Mixture of experts: the choice, and the chosen experts' products.
#include <numeric>
#include <set>
#include <string>

#include "core/check.h"
#include "harness/bench/job.h"

namespace hypic::bench {
namespace {

// `active` different experts for each row, all equally likely.
std::vector<int32_t> choices(int64_t rows, int64_t experts, int64_t active) {
  Draw draw(11);
  std::vector<int32_t> order(experts), all;
  std::iota(order.begin(), order.end(), 0);
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t j = 0; j < active; ++j) {
      std::swap(order[j], order[draw.integer(j, experts - 1)]);
      all.push_back(order[j]);
    }
  return all;
}

}  // namespace

void add_experts(std::vector<Bench>& all, const Sizes& sizes) {
  const int64_t E = sizes(256, 16), k = sizes(8, 2), N = sizes(2048, 64), I = sizes(512, 32);
  for (const int64_t R :
       sizes.small ? std::vector<int64_t>{1, 33} : std::vector<int64_t>{1, 64, 576, 8192})
    all.push_back({str("experts/E", E, "_k", k, "_K", N, "_I", I, "/R", R), [=](Job& job) {
                     const std::vector<int32_t> chosen = choices(R, E, k);
                     const ExpertsArgs a{.x = job.normal({R, N}),
                                         .experts = job.index(chosen).reshape({R, k}),
                                         .weights = job.uniform({R, k}, 0.05, 0.2),
                                         .up = job.normal({E, 2 * I, N}, 0.02),
                                         .down = job.normal({E, N, I}, 0.02),
                                         .gated = true,
                                         .activation = Activation::silu,
                                         .out = job.output("out", {R, N})};
                     const std::set<int32_t> touched(chosen.begin(), chosen.end());
                     job.cost = experts_cost(a, static_cast<int64_t>(touched.size()));
                     job.enqueue = [&job, a] { job.backend.experts(a); };
                   }});

  const int64_t R = sizes(8192, 33);
  all.push_back({str("route/E", E, "_k", k, "/R", R), [=](Job& job) {
                   const RouteArgs a{.logits = job.state_normal({R, E}, 2),
                                     .score = RouteArgs::Score::softmax,
                                     .renormalise = true,
                                     .experts = job.index_output("experts", {R, k}),
                                     .weights = job.state_output("weights", {R, k})};
                   job.cost.bytes = bytes_of({a.logits, a.experts, a.weights});
                   job.enqueue = [&job, a] { job.backend.route(a); };
                 }});
}

}  // namespace hypic::bench
