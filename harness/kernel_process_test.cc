#include "harness/kernel_process.h"

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/check.h"
#include "harness/backends.h"
#include "harness/cases/case.h"
#include "reference/cpu_backend.h"

namespace hypic {
namespace {

using conformance::Case;
using conformance::Findings;

// The plug-ins here do not crash: they may be loaded by the tests.
std::string plugin_file(const std::string& name) { return str(HYPIC_PLUGINS, "/", name, ".so"); }

class CountingWatch final : public plugin::Watch {
 public:
  void loaded(const std::string&, const hypic_kernel& kernel) override { name = kernel.name; }
  void enter(std::string_view) override { ++depth; }
  void leave() override { --depth; }
  void ran(const std::string& key) override { ++keys[key]; }

  std::string name;
  int depth = 0;
  std::map<std::string, int64_t> keys;
};

std::unique_ptr<Backend> with(const std::string& name, CountingWatch& watch,
                              std::unique_ptr<Backend> base = reference::make_cpu_backend()) {
  return plugin::make_plugin_backend(std::move(base), plugin_file(name), nullptr, watch);
}

Findings run(const std::string& name, Backend& backend) {
  for (const Case& c : conformance::all_cases())
    if (c.name == name) return run_case(c, backend, {});
  ADD_FAILURE() << name;
  return {};
}

std::string refusal(const std::string& name, std::unique_ptr<Backend> base = reference::make_cpu_backend()) {
  CountingWatch watch;
  try {
    with(name, watch, std::move(base));
  } catch (const Error& error) {
    EXPECT_EQ(watch.depth, 0);
    return error.what();
  }
  return "accepted";
}

TEST(Plugin, ComputesWhatItOffersAndLeavesTheRest) {
  CountingWatch watch;
  const auto backend = with("gated_delta_rule", watch);
  EXPECT_EQ(backend->name(), "cpu+gated_delta_rule");
  EXPECT_EQ(watch.name, "gated_delta_rule");
  EXPECT_TRUE(backend->batch_invariant());
  EXPECT_EQ(run("gated_delta_net/reuse", *backend).failed, 0);
  const auto own = watch.keys;
  ASSERT_EQ(own.size(), 1);
  EXPECT_EQ(own.begin()->first, "linear_attention/kernel");
  EXPECT_EQ(run("kda/random", *backend).failed, 0);
  EXPECT_EQ(run("gated_oja/random", *backend).failed, 0);
  EXPECT_EQ(run("attention/fault_16_empty_parts", *backend).failed, 0);
  EXPECT_GT(watch.keys["linear_attention/base:cell"], 0);
  EXPECT_EQ(watch.keys["linear_attention/kernel"], own.begin()->second);
  EXPECT_EQ(backend->launches(), watch.keys);
  EXPECT_EQ(watch.depth, 0);
}

TEST(Plugin, ItsOwnReasonsToDeclineAreCounted) {
  CountingWatch watch;
  const auto backend = with("broken_declines_all", watch);
  EXPECT_EQ(run("gated_delta_net/random", *backend).failed, 0);
  EXPECT_GT(watch.keys["linear_attention/base:declined:not_today"], 0);
}

TEST(Plugin, ItsFailureIsAFailureOfTheCase) {
  CountingWatch watch;
  for (const char* name : {"broken_fails", "broken_returns_nonsense"}) {
    const auto backend = with(name, watch);
    EXPECT_EQ(run("gated_delta_net/random", *backend).failed, 1) << name;
    EXPECT_EQ(watch.depth, 0);
  }
}

TEST(Plugin, OtherLibrariesAreRefusedInOneLine) {
  EXPECT_NE(refusal("none").find("cannot be loaded"), std::string::npos);
  EXPECT_NE(refusal("broken_no_symbol").find("exports no hypic_kernel_get"), std::string::npos);
  EXPECT_NE(refusal("broken_other_version").find("version 2"), std::string::npos);
  EXPECT_NE(refusal("broken_other_size").find("8 bytes"), std::string::npos);
  EXPECT_NE(refusal("broken_no_such_version").find("does not speak version 1"), std::string::npos);
  EXPECT_NE(refusal("gated_delta_rule", reference::make_cpu64_backend()).find("float64"), std::string::npos);
}

TEST(KernelProcess, PluginsAreNotLoadedOutsideOfIt) {
  ASSERT_FALSE(kernel_process::is_child());
  EXPECT_THROW(make_backend("cpu+" + plugin_file("gated_delta_rule")), Error);
  EXPECT_THROW(with_kernel("cpu", plugin_file("none")), Error);
  EXPECT_THROW(with_kernel("broken:half_state", plugin_file("gated_delta_rule")), Error);
  EXPECT_EQ(with_kernel("", plugin_file("gated_delta_rule")), "cpu+" + plugin_file("gated_delta_rule"));
}

TEST(KernelProcess, TheOptionIsFoundInBothForms) {
  const auto named = [](std::vector<std::string> words) {
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    return kernel_process::named_in(static_cast<int>(argv.size()), argv.data());
  };
  EXPECT_EQ(named({"hypic", "conformance", "--kernel", "a.so"}), "a.so");
  EXPECT_EQ(named({"hypic", "conformance", "--kernel=a.so", "--op", "x"}), "a.so");
  EXPECT_EQ(named({"hypic", "conformance", "--kernel-seconds", "3"}), "");
  EXPECT_EQ(named({"hypic", "conformance", "--kernel"}), "");
}

}  // namespace
}  // namespace hypic
