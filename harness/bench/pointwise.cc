// Operations that only move memory.
#include <string>

#include "core/check.h"
#include "harness/bench/job.h"

namespace hypic::bench {

void add_pointwise(std::vector<Bench>& all, const Sizes& sizes) {
  const int64_t R = sizes(8192, 33), N = sizes(2048, 64), H = sizes(32, 4), D = sizes(128, 16);
  all.push_back({str("rms_norm/R", R, "_N", N), [=](Job& job) {
                   const RmsNormArgs a{.x = job.normal({R, N}),
                                       .weight = job.normal({N}),
                                       .plus_one = true,
                                       .eps = 1e-6,
                                       .out = job.output("out", {R, N})};
                   job.cost.bytes = bytes_of({a.x, a.weight, a.out});
                   job.enqueue = [&job, a] { job.backend.rms_norm(a); };
                 }});
  all.push_back({str("add_rms_norm/R", R, "_N", N), [=](Job& job) {
                   const AddRmsNormArgs a{.residual = job.normal({R, N}),
                                          .update = job.normal({R, N}, 0.01),
                                          .weight = job.normal({N}),
                                          .plus_one = true,
                                          .eps = 1e-6,
                                          .out = job.output("out", {R, N})};
                   // The residual is read and written.
                   job.cost.bytes = bytes_of({a.residual, a.residual, a.update, a.weight, a.out});
                   job.enqueue = [&job, a] { job.backend.add_rms_norm(a); };
                 }});
  all.push_back({str("add_gated/R", R, "_N", N), [=](Job& job) {
                   const AddGatedArgs a{.x = job.output("out", {R, N}),
                                        .y = job.normal({R, N}, 0.01),
                                        .gate = job.normal({R, 1}),
                                        .activation = Activation::sigmoid};
                   job.backend.fill_zero(a.x);
                   job.cost.bytes = bytes_of({a.x, a.x, a.y, a.gate});
                   job.enqueue = [&job, a] { job.backend.add_gated(a); };
                 }});
  all.push_back({str("gated_norm/R", R, "_H", H, "_d", D), [=](Job& job) {
                   const GatedNormArgs a{.x = job.normal({R, H, D}),
                                         .weight = job.normal({D}),
                                         .eps = 1e-6,
                                         .gate = job.normal({R, H, D}),
                                         .activation = Activation::silu,
                                         .out = job.output("out", {R, H, D})};
                   job.cost.bytes = bytes_of({a.x, a.weight, a.gate, a.out});
                   job.enqueue = [&job, a] { job.backend.gated_norm(a); };
                 }});
  all.push_back({str("gate_mul/R", R, "_N", H * D), [=](Job& job) {
                   const GateMulArgs a{.x = job.normal({R, H * D}),
                                       .gate = job.normal({R, H * D}),
                                       .activation = Activation::sigmoid,
                                       .out = job.output("out", {R, H * D})};
                   job.cost.bytes = bytes_of({a.x, a.gate, a.out});
                   job.enqueue = [&job, a] { job.backend.gate_mul(a); };
                 }});
  const int64_t vocabulary = sizes(248320, 500);
  all.push_back(
      {str("embedding/V", vocabulary, "_N", N, "/R", R), [=](Job& job) {
         Draw draw(3);
         std::vector<int32_t> tokens(R);
         for (int32_t& token : tokens)
           token = static_cast<int32_t>(draw.integer(0, vocabulary - 1));
         const EmbeddingArgs a{.tokens = job.index(tokens),
                               .table = job.normal({vocabulary, N}),
                               .out = job.output("out", {R, N})};
         job.cost.bytes = bytes_of({a.tokens, a.out, a.out});  // each row read and written
         job.enqueue = [&job, a] { job.backend.embedding(a); };
       }});
}

}  // namespace hypic::bench
