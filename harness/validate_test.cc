// suites/validate.json against backends that are wrong on purpose: each of its promises is kept.
#include <gtest/gtest.h>

#include <algorithm>

#include "core/temporary_folder.h"
#include "harness/assets.h"
#include "harness/runner.h"

namespace hypic {
namespace {

struct Promise {
  const char* model;
  const char* backend;
  const char* broken_case;  // which must fail, besides whatever else does
};
void PrintTo(const Promise& promise, std::ostream* out) { *out << promise.model << ", " << promise.backend; }

class Validate : public testing::TestWithParam<Promise> {};

TEST_P(Validate, NoticesABackend) {
  const Promise& promise = GetParam();
  RunSettings settings;
  const TemporaryFolder out;
  settings.out = out.path();
  settings.context.model = "models/testdata/transformers/" + std::string(promise.model);
  settings.context.backend = promise.backend;
  settings.lenient = true;
  const Report report = run_suite(load_suite(asset("suites/validate.json")), settings);
  const bool sound = promise.broken_case == nullptr;
  for (const Result& result : report.results) {
    if (sound) {
      EXPECT_TRUE(result.verdict == Verdict::pass || result.verdict == Verdict::skip)
          << result.name << ": " << result.why;
    } else if (result.name == promise.broken_case) {
      EXPECT_EQ(result.verdict, Verdict::fail) << result.why;
    }
  }
  EXPECT_EQ(exit_code(report), sound ? 0 : 1);
}

constexpr const char* kReuse = "reuse is exact where it must be";
constexpr const char* kFloat64 = "the backend computes what float64 does";
constexpr const char* kAgree = "chunks, single steps and batches agree with one prefill";

INSTANTIATE_TEST_SUITE_P(
    Promises, Validate,
    testing::Values(Promise{"qwen3_next", "cpu", nullptr}, Promise{"bailing_moe_linear", "cpu64", nullptr},
                    Promise{"qwen3_next", "broken:operator_transposed", kReuse},
                    Promise{"qwen3_next", "broken:operator_of_the_state", kReuse},
                    Promise{"qwen3_next", "broken:operator_split_lost", kReuse},
                    Promise{"qwen3_next", "broken:compose_ignored", kReuse},
                    Promise{"qwen3_next", "broken:conv_ignores_jumps", kReuse},
                    Promise{"qwen3_next", "broken:residues_not_relocated", kReuse},
                    Promise{"kimi_linear", "broken:residue_seen_early", kReuse},
                    Promise{"bailing_moe_linear", "broken:jump_not_relocated", kReuse},
                    Promise{"qwen3_next", "broken:neighbour_leak", kAgree},
                    Promise{"qwen3_next", "broken:state_transposed", kFloat64},
                    Promise{"bailing_moe_linear", "broken:expert_groups_ignored", kFloat64}),
    [](const auto& info) {
      std::string name = std::string(info.param.model) + "_" + info.param.backend;
      std::replace(name.begin(), name.end(), ':', '_');
      return name;
    });

}  // namespace
}  // namespace hypic
