// The GPU backends, where there is a GPU: some cases of every operation. tools/gpu-suite.sh runs all.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>

#include "core/check.h"
#include "harness/backends.h"
#include "harness/driver.h"

namespace hypic {
namespace {

// The values of conformance over cases whose name ends so.
std::map<std::string, double> conformance_of(const std::string& backend, const std::string& cases) {
  SuiteCase some;
  some.parameters = {{"backend", backend}, {"filter", "/(" + cases + ")$"}};
  const Work work = find_driver("conformance")->prepare(some, "test", {});
  const Result result = work([](double, const std::string&) {});
  EXPECT_EQ(result.verdict, Verdict::pass) << result.why;
  std::map<std::string, double> values;
  for (const Value& value : result.values) values[value.tag] = value.value;
  return values;
}

class Cuda : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    try {
      make_backend(GetParam());
    } catch (const Error& error) {
      GTEST_SKIP() << error.what();
    }
  }
};

TEST_P(Cuda, Conforms) {
  EXPECT_EQ(conformance_of(GetParam(), "shapes|reuse|relocation|sizes|lengths|jumps|latent|residues|rows|kinds|greedy|"
                                       "inputs|range|wide|aligned|numbers|items|many_items|decode|limits|chains|scales|"
                                       "pages|batches|strided")["failed"],
            0);
}

// The plain rung runs no tuned kernel, the fast one those that take the shape; what ran is what the report says.
TEST_P(Cuda, RunsTheKernelsOfItsRung) {
  const std::map<std::string, double> values = conformance_of(GetParam(), "wide|aligned|lengths|kinds");
  const bool fast = std::string(GetParam()) == "cuda";
  for (const char* kernel :
       {"attention/mma", "attention/wgmma", "experts/mma", "experts/wgmma", "linear_attention/chunked",
        "linear_attention/low_rank", "causal_conv/rows"})
    EXPECT_EQ(values.contains(std::string("launches.") + kernel), fast) << kernel;
  const std::string elementwise = "launches.linear_attention/elementwise";  // float32 too
  EXPECT_EQ(values.contains(elementwise), !std::string(GetParam()).ends_with(":plain"));
  for (const char* kernel : {"attention/plain", "experts/plain", "linear_attention/plain", "append_kv/plain"})
    EXPECT_TRUE(values.contains(std::string("launches.") + kernel)) << kernel;
  for (const auto& [tag, count] : values) {
    if (fast || !tag.starts_with("launches.") || tag == elementwise) continue;
    EXPECT_TRUE(tag.ends_with("/plain") || tag.ends_with("/cublas")) << tag;
  }
}

// Several under way at once, through one tensor.
TEST_P(Cuda, CopiesThatDoNotWaitKeepTheirOrder) {
  constexpr int64_t kSize = 1 << 20, kCopies = 8;
  const auto backend = make_backend(GetParam());
  const Buffer tensor(*backend, DType::f32, {kSize});
  auto* from = static_cast<float*>(backend->allocate_host(kCopies * kSize * sizeof(float)));
  auto* to = static_cast<float*>(backend->allocate_host(kCopies * kSize * sizeof(float)));
  for (int64_t i = 0; i < kCopies * kSize; ++i) from[i] = static_cast<float>(i % 9973), to[i] = -1;
  for (int64_t copy = 0; copy < kCopies; ++copy) {
    backend->upload_async(tensor, from + copy * kSize);
    backend->download_async(to + copy * kSize, tensor);
  }
  const auto event = backend->record();
  ASSERT_TRUE(event);
  event->wait();
  EXPECT_TRUE(event->done());
  EXPECT_TRUE(std::equal(from, from + kCopies * kSize, to));
  backend->release_host(from);
  backend->release_host(to);
}

INSTANTIATE_TEST_SUITE_P(Backends, Cuda, testing::Values("cuda", "cuda:plain", "cuda32"), [](const auto& info) {
  std::string name = info.param;
  std::replace(name.begin(), name.end(), ':', '_');
  return name;
});

TEST(Rungs, OrANumberOfMultiprocessors) {
  EXPECT_TRUE(on_gpu("cuda:78"));
  EXPECT_TRUE(on_gpu("cuda32:132"));
  for (const char* name : {"cuda:", "cuda:0", "cuda:-1", "cuda:78x", "cuda:99999999999", "cpu:78"}) EXPECT_FALSE(on_gpu(name)) << name;
}

TEST(Rungs, AreOfTheGpuBackendsAlone) {
  EXPECT_EQ(on_rung("cuda", "plain"), "cuda:plain");
  EXPECT_EQ(on_rung("cuda32", "fast"), "cuda32:fast");
  EXPECT_EQ(on_rung("cpu", ""), "cpu");
  for (const auto& [backend, rung] : {std::pair{"cpu", "plain"}, {"", "fast"}, {"cuda", "best"}, {"cuda:plain", "plain"}})
    EXPECT_THROW(on_rung(backend, rung), Error) << backend << " " << rung;
}

}  // namespace
}  // namespace hypic
