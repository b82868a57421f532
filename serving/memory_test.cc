#include "serving/memory.h"

#include <gtest/gtest.h>

#include <iostream>

#include "core/check.h"
#include "reference/cpu_backend.h"
#include "serving/engine.h"

namespace hypic {
namespace {

Tokens tokens_of(int64_t n, int32_t vocabulary, int32_t seed) {
  Tokens tokens(n);
  for (int64_t i = 0; i < n; ++i) tokens[i] = static_cast<int32_t>((seed * 7919 + i * 31) % vocabulary);
  return tokens;
}

// What is foretold against what the backend counts: pools to the byte but for the allocator's rounding,
// activations as a bound that is not far off.
TEST(MemoryNeed, BoundsWhatIsTaken) {
  constexpr int32_t kRows = 256;
  for (const std::string& name : model_names()) {
    const ModelSpec spec = spec_named(name);
    if (!name.ends_with("-tiny") || spec.hidden > 256) continue;
    const auto backend = reference::make_cpu_backend();
    const PoolSizes pools{.state_slots = 4, .operator_slots = 4, .pages = 64, .page_size = 16};
    const MemoryNeed need = memory_need(spec, DType::f32, DType::f32, pools, kRows);
    const auto taken = [&] { return static_cast<double>(backend->memory_use().now); };
    const Model model = Model::random(*backend, spec, 1);
    const double weights = taken();
    EXPECT_NEAR(weights, static_cast<double>(need.weights), 0.05 * weights + 65536) << name;
    Engine engine(model, {.pools = pools, .max_rows = kRows});
    const double resting = taken(), in_pools = static_cast<double>(need.pages + need.operators + need.states);
    EXPECT_NEAR(resting - weights, in_pools, 0.02 * in_pools + 65536) << name;
    backend->forget_peak();
    EXPECT_EQ(backend->memory_use().peak, backend->memory_use().now);
    engine.run({{{tokens_of(2 * kRows, spec.vocabulary, 1)}, 1}}, mode_named("full"));
    const double activations = static_cast<double>(backend->memory_use().peak) - resting;
    std::cout << name << ": activations " << activations << " of " << need.activations << " foretold\n";
    EXPECT_LE(activations, static_cast<double>(need.activations)) << name;
    EXPECT_GE(3 * activations, static_cast<double>(need.activations)) << name;
    EXPECT_EQ(taken(), resting) << "left behind by a run of " << name;
  }
}

TEST(MemoryNeed, RefusedWithTheArithmetic) {
  const MemoryNeed need{int64_t{65} << 30, int64_t{5} << 30, int64_t{60} << 30, int64_t{4} << 30,
                        int64_t{2} << 30, 8192};
  EXPECT_NO_THROW(require_memory("m", need, int64_t{136} << 30));
  try {
    require_memory("m", need, int64_t{120} << 30);
    FAIL();
  } catch (const OutOfMemory& error) {
    EXPECT_STREQ(error.what(),
                 "m: out of memory: weights 65.0 GiB + K, V pages 5.0 GiB + operators 60.0 GiB + states 4.0 GiB + "
                 "activations of 8192 rows 2.0 GiB = 136.0 GiB of 120.0 GiB available; lower operator slots: fewer "
                 "cached segments");
  }
}

TEST(MemoryNeed, AnEngineThatDoesNotFitTakesNothing) {
  const auto backend = reference::make_cpu_backend();
  const Model model = Model::random(*backend, spec_named("qwen3.5-tiny"), 1);
  const size_t before = backend->memory_use().now;
  EngineOptions options;
  const MemoryNeed need = memory_need(model.spec(), DType::f32, DType::f32, options.pools, options.max_rows);
  options.memory_bytes = need.total() - 1;
  EXPECT_THROW(Engine(model, options), OutOfMemory);
  EXPECT_EQ(backend->memory_use().now, before);
  options.memory_bytes = need.total();
  EXPECT_NO_THROW(Engine(model, options));
  options.max_rows /= 2;  // what the message says helps
  options.memory_bytes = need.total() - 1;
  EXPECT_NO_THROW(Engine(model, options));
}

}  // namespace
}  // namespace hypic
