#include "serving/metrics.h"

#include <gtest/gtest.h>

namespace hypic {
namespace {

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

// What is not there is not counted: zeros would say that nothing is cached.
TEST(Metrics, ShowOnlyWhatThereIs) {
  const Metrics metrics;
  Load load;
  EXPECT_FALSE(has(metrics.text(load), "hypic_cache_"));
  EXPECT_FALSE(has(metrics.text(load), "hypic_router_"));
  load.cache = CacheUsage{.entries = 7};
  EXPECT_TRUE(has(metrics.text(load), "hypic_cache_entries 7\n"));
  load.router = {.workers_up = 3, .segments = {{"scatter", 5}}};
  EXPECT_TRUE(has(metrics.text(load), "hypic_router_workers_up 3\n"));
  EXPECT_TRUE(has(metrics.text(load), "hypic_router_segments_total{by=\"scatter\"} 5\n"));
}

TEST(Metrics, AreReadyUntilTheyDrain) {
  const Metrics metrics;
  Load load;
  EXPECT_TRUE(has(metrics.text(load), "hypic_ready 0\n"));
  load.why_not_ready.clear();
  EXPECT_TRUE(has(metrics.text(load), "hypic_ready 1\n"));
  load.draining = true;
  EXPECT_TRUE(has(metrics.text(load), "hypic_ready 0\n"));
}

}  // namespace
}  // namespace hypic
