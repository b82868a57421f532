// The GPU backends, where there is a GPU: some cases of every operation. tools/gpu-suite.sh runs all.
#include <gtest/gtest.h>

#include <algorithm>

#include "core/check.h"
#include "harness/backends.h"
#include "harness/driver.h"

namespace hypic {
namespace {

class Cuda : public testing::TestWithParam<const char*> {};

TEST_P(Cuda, Conforms) {
  try {
    make_backend(GetParam());
  } catch (const Error& error) {
    GTEST_SKIP() << error.what();
  }
  SuiteCase some;
  some.parameters = {
      {"backend", GetParam()},
      {"filter", "/(shapes|reuse|relocation|sizes|lengths|jumps|latent|residues|rows|kinds|ties|inputs|range)$"}};
  const Work work = find_driver("conformance")->prepare(some, "test", {});
  const Result result = work([](double, const std::string&) {});
  const auto failed = std::find_if(result.values.begin(), result.values.end(),
                                   [](const Value& value) { return value.tag == "failed"; });
  ASSERT_NE(failed, result.values.end());
  EXPECT_EQ(failed->value, 0) << result.why;
}

INSTANTIATE_TEST_SUITE_P(Backends, Cuda, testing::Values("cuda", "cuda32"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace hypic
