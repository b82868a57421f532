#include "serving/worker_identity.h"

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <vector>

#include "reference/cpu_backend.h"

namespace hypic {
namespace {

TEST(WorkerIdentity, SaysWhatDiffers) {
  const auto narrow = reference::make_cpu_backend(), wide = reference::make_cpu64_backend();
  const Mode mode = mode_named("transition_rope_seam");
  const auto of = [&](const char* name, const Mode& mode) {
    return identity_of(name, Model::open(*narrow, name), mode);
  };
  const WorkerIdentity ours = of("random:qwen3.5-tiny:7", mode);
  EXPECT_EQ(difference(ours, of("random:qwen3.5-tiny:7", mode)), "");
  EXPECT_EQ(difference(ours, of("random:qwen3.5-tiny:7", mode_named("transition"))),
            "differs in --mode: ours transition_rope_seam, theirs transition");
  EXPECT_EQ(difference(ours, of("random:qwen3.5-tiny", mode)),
            "differs in --model: ours random:qwen3.5-tiny:7, theirs random:qwen3.5-tiny:0");
  EXPECT_EQ(difference(ours, identity_of("random:qwen3.5-tiny:7", Model::open(*wide, "random:qwen3.5-tiny:7"), mode)),
            "differs in --backend: ours cpu (float32, float32), theirs cpu64 (float64, float64)");
  const auto group = reference::make_cpu_ranks(2);
  Backend* const ranks[] = {group[0].get(), group[1].get()};
  EXPECT_EQ(difference(ours, identity_of("random:qwen3.5-tiny:7", Model::open(ranks, "random:qwen3.5-tiny:7"), mode)),
            "differs in --tensor-parallel: ours 1, theirs 2");
  const WorkerIdentity keyed =
      identity_of("random:qwen3.5-tiny:7", Model::open(*narrow, "random:qwen3.5-tiny:7"), mode, "a shared secret");
  EXPECT_EQ(difference(ours, keyed), "differs in --key-file: ours none, theirs " + keyed.key);
  EXPECT_EQ(keyed.key.find("secret"), std::string::npos);
  WorkerIdentity theirs = ours;
  theirs.numerics = "0";
  EXPECT_EQ(difference(ours, theirs),
            "differs in the version of residues, so one runs another version of hypic: ours 1, theirs 0");
  EXPECT_EQ(difference(ours, {}), "differs in --model: ours random:qwen3.5-tiny:7, theirs unknown");
  theirs = ours;
  theirs.mode = std::string(1 << 20, 'x');
  EXPECT_LT(difference(ours, theirs).size(), 300u);
}

// A router knows neither weights nor backend.
TEST(WorkerIdentity, OfARouterIsThatOfItsWorkers) {
  const auto backend = reference::make_cpu_backend();
  const Mode mode = mode_named("transition_rope_seam");
  for (const char* name : {"random:qwen3.5-tiny", "random:qwen3.5-tiny:7", "datasets/models/tiny-qwen3.5"}) {
    const WorkerIdentity router = identity_of(name, spec_of(name), mode);
    EXPECT_EQ(difference(router, identity_of(name, Model::open(*backend, name), mode)), "");
    const WorkerIdentity other =
        identity_of("random:kimi-linear-48b-a3b-tiny", Model::open(*backend, "random:kimi-linear-48b-a3b-tiny"), mode);
    EXPECT_NE(difference(router, other), "");
  }
  const char folder[] = "datasets/models/tiny-qwen3.5";
  WorkerIdentity theirs = identity_of(folder, Model::open(*backend, folder), mode);
  theirs.config[0] ^= 1;
  EXPECT_TRUE(difference(identity_of(folder, spec_of(folder), mode), theirs)
                  .starts_with("differs in the config.json of --model: ours tiny-qwen3.5 ("));
}

// Each part alone makes other names in a shared store; which name the model goes by does not.
TEST(WorkerIdentity, DigestsHoldAllButTheName) {
  const auto backend = reference::make_cpu_backend();
  const WorkerIdentity one = identity_of("random:qwen3.5-tiny", Model::open(*backend, "random:qwen3.5-tiny"),
                                         mode_named("transition_rope_seam"));
  WorkerIdentity other = one;
  other.model = "another name";
  other.key = "another key";
  EXPECT_EQ(one.digest(), other.digest());
  for (std::string WorkerIdentity::*part : {&WorkerIdentity::weights, &WorkerIdentity::config, &WorkerIdentity::backend,
                                            &WorkerIdentity::ranks, &WorkerIdentity::numerics, &WorkerIdentity::mode}) {
    other = one;
    other.*part += "x";
    EXPECT_NE(one.digest(), other.digest());
  }
}

}  // namespace
}  // namespace hypic
