// The suite holds the CPU backends to account, and notices every broken one.
#include <gtest/gtest.h>

#include <chrono>
#include <iostream>
#include <regex>
#include <set>
#include <thread>

#include "core/check.h"
#include "core/safetensors.h"
#include "core/temporary_folder.h"
#include "harness/backends.h"
#include "harness/cases/broken.h"
#include "harness/cases/captured.h"
#include "harness/cases/case.h"
#include "harness/cases/family_case.h"

namespace hypic::conformance {
namespace {

// Those of long prompts are left to `hypic conformance`.
bool is_quick(const Case& c) { return !c.name.ends_with("/long"); }

void expect_conforming(const std::string& name, const std::string& cases) {
  const auto backend = make_backend(name);
  for (const Case& c : all_cases()) {
    if (!is_quick(c) || !std::regex_search(c.name, std::regex(cases))) continue;
    const Findings f = run_case(c, *backend, {});
    EXPECT_GT(f.checks, 0) << c.name;
    EXPECT_EQ(f.failed, 0) << name << ", " << c.name << ": "
                           << (f.failures.empty() ? "" : f.failures[0]);
  }
}

TEST(Cases, TheFloat32BackendConforms) { expect_conforming("cpu", ""); }

// One cell of each kind; every case runs in float64 by `hypic conformance --backend cpu64`.
TEST(Cases, TheFloat64BackendConforms) {
  expect_conforming("cpu64",
                    "^(lightning|mamba1|gla|gated_delta_net|comba|mlstm)/"
                    "[^l]|^(attention|causal_conv|rope|moe)/");
}

TEST(Cases, EveryFamilyAndEveryReportedFaultHasCases) {
  std::set<std::string> names;
  std::string all;
  for (const Case& c : all_cases()) {
    EXPECT_TRUE(names.insert(c.name).second) << c.name << " twice";
    all += c.name + "\n";
  }
  for (const FamilyTraits& traits : kFamilies) {
    const bool has_cell = case_of(traits.family).no_cell.empty();
    EXPECT_EQ(has_cell, traits.update != Update::nonlinear) << traits.name;
    EXPECT_EQ(has_cell, names.contains(str(traits.name, "/lengths"))) << traits.name;
  }
  for (int fault = 1; fault <= 16; ++fault)
    EXPECT_NE(all.find(str("/fault_", fault < 10 ? "0" : "", fault, "_")), all.npos) << fault;
}

TEST(Broken, EveryFaultClassIsCaughtByACaseThatTheIntactBackendPasses) {
  const auto intact = make_backend("cpu");
  std::set<int> reported;
  for (const FaultClass& fault : fault_classes()) {
    reported.insert(fault.reported);
    std::string caught_by;
    for (const Case& c : all_cases()) {
      if (!std::regex_search(c.name, std::regex(fault.cases))) continue;
      const Findings f = run_case(c, *make_broken_backend(fault.name), {});
      if (f.failed == 0) continue;
      caught_by = c.name;
      std::cout << fault.name << ": " << c.name << ", " << f.failures[0] << "\n";
      if (is_quick(c)) break;  // the intact backend passes it in the test above
      EXPECT_EQ(run_case(c, *intact, {}).failed, 0) << c.name;
      break;
    }
    EXPECT_NE(caught_by, "") << fault.name << ": " << fault.what;
  }
  for (int fault = 1; fault <= 16; ++fault)
    EXPECT_TRUE(reported.contains(fault)) << "no broken backend for reported fault " << fault;
}

// D8: a kernel that hangs.
TEST(Broken, ACaseThatHangsEndsTheProgram) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const Case hangs{"gated_delta_net/hangs", "linear_attention", "gated_delta_net",
                   [](Context&) { std::this_thread::sleep_for(std::chrono::seconds(60)); }};
  EXPECT_EXIT(run_case(hangs, *make_backend("cpu"), {.patience = 1}), testing::ExitedWithCode(1),
              "hypic: conformance: gated_delta_net/hangs hangs: no answer for 1 s");
}

TEST(Broken, UnknownFaultsAreRefused) {
  EXPECT_THROW(make_backend("broken:none"), Error);
  EXPECT_EQ(make_backend("broken:state_transposed")->name(), "broken:state_transposed");
}

// Captured activations
// -----------------------------------------------------------------------------

std::string refusal(const std::vector<std::pair<std::string, Tensor>>& tensors,
                    const std::string& family = "kda") {
  const TemporaryFolder folder;
  const std::string path = folder.path("captured.safetensors");
  write_safetensors(path, tensors);
  try {
    captured_case(path, family);
  } catch (const Error& error) {
    const std::string message = error.what();
    EXPECT_EQ(message.find('\n'), message.npos) << message;
    return message;
  }
  return "accepted";
}

TEST(Captured, GoldenFilesConform) {
  for (const char* name : {"kda", "linear", "gsa", "gated_delta_product", "gated_oja"}) {
    const std::string path = str("reference/testdata/fla/", name, ".safetensors");
    for (const char* backend : {"cpu", "cpu64"}) {
      const Findings f = run_case(captured_case(path, name), *make_backend(backend), {});
      EXPECT_EQ(f.failed, 0) << name << ": " << (f.failures.empty() ? "" : f.failures[0]);
      EXPECT_GT(f.checks, 8);
    }
  }
}

TEST(Captured, AnotherImplementationsErrorsShow) {
  const std::string golden = "reference/testdata/fla/delta_net.safetensors";
  const Safetensors file(golden);
  std::vector<std::pair<std::string, Tensor>> tensors(file.tensors().begin(), file.tensors().end());
  std::vector<float> o(37 * 2 * 6, 0.5f);
  for (auto& [name, tensor] : tensors)
    if (name == "o") tensor.data = o.data();
  const TemporaryFolder folder;
  const std::string path = folder.path("wrong.safetensors");
  write_safetensors(path, tensors);
  const Findings f = run_case(captured_case(path, "delta_net"), *make_backend("cpu"), {});
  ASSERT_EQ(f.failed, 1);
  EXPECT_TRUE(f.failures[0].starts_with("captured o: [0, 0, 0] is 0.5, expected")) << f.failures[0];
}

TEST(Captured, BadFilesGetOneLine) {
  std::vector<float> data(64, 0.5f);
  const Tensor q(data.data(), {2, 1, 4}), v(data.data(), {2, 2, 3}), g(data.data(), {2, 2, 4}),
      beta(data.data(), {2, 2}), wide(data.data(), {2, 1, 5}), flat(data.data(), {8});
  EXPECT_NE(refusal({{"q", q}}).find("lacks the tensor k [T, Hk, dk] of kda"), std::string::npos);
  const auto all = [&](Tensor k) {
    return std::vector<std::pair<std::string, Tensor>>{
        {"q", q}, {"k", k}, {"v", v}, {"g", g}, {"beta", beta}};
  };
  EXPECT_EQ(refusal(all(q)), "accepted");
  EXPECT_NE(refusal(all(wide)).find("dk is 5 in k, 4 in q"), std::string::npos);
  EXPECT_NE(refusal(all(flat)).find("k has shape [8], expected k [T, Hk, dk]"), std::string::npos);
  auto extra = all(q);
  extra.emplace_back("w", q);
  EXPECT_NE(refusal(extra).find("unknown tensor \"w\"; kda takes q [T, Hk, dk]"),
            std::string::npos);
  extra.back() = {"S0", q};
  EXPECT_NE(refusal(extra).find("S0 has shape [2, 1, 4], expected 3 axes of 2 × 4 × 3"),
            std::string::npos);
  std::vector<float> bad(8, NAN);
  EXPECT_NE(refusal(all(Tensor(bad.data(), {2, 1, 4}))).find("k holds nan at [0, 0, 0]"),
            std::string::npos);
  EXPECT_NE(refusal(all(q), "ttt_linear").find("nonlinear"), std::string::npos);
  EXPECT_NE(refusal(all(q), "none").find("unknown family"), std::string::npos);
  EXPECT_THROW(captured_case("no/such.safetensors", "kda"), Error);
}

}  // namespace
}  // namespace hypic::conformance
