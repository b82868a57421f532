#include "harness/cases/golden.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <string>
#include <vector>

#include "core/check.h"
#include "core/safetensors.h"
#include "core/temporary_folder.h"

namespace hypic::golden {
namespace {

namespace fs = std::filesystem;

std::string refusal(std::string_view line) {
  try {
    parse_workload(line, "d", "here");
  } catch (const Error& error) {
    return error.what();
  }
  return "accepted";
}

TEST(Golden, WorkloadsStayInTheirFolder) {
  EXPECT_EQ(parse_workload(R"({"definition": "d", "workload": {"uuid": "a-1.b"}})", "d", "here").uuid, "a-1.b");
  for (const char* uuid : {"", ".", "..", "../a", "a/b", "/a", "a\\u0000b", "a b", "\\u00e4"})
    EXPECT_NE(refusal(str(R"({"definition": "d", "workload": {"uuid": ")", uuid, "\"}}")).find("no plain file name"),
              std::string::npos)
        << uuid;
  EXPECT_NE(refusal(R"({"definition": "e", "workload": {"uuid": "a"}})").find("not of d"), std::string::npos);
  EXPECT_NE(refusal(R"({"definition": "d"})").find("no workload"), std::string::npos);
  EXPECT_NE(refusal(R"({"definition": 1, "workload": []})").find("must be text"), std::string::npos);
  EXPECT_TRUE(refusal("[").starts_with("here"));
}

class Written : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    made_ = std::make_unique<TemporaryFolder>();
    write(folder(), {"gated_delta_net"});
  }
  static void TearDownTestSuite() { made_.reset(); }
  static const std::string& folder() { return made_->path(); }
  static std::string file_of(const char* kind, const Workload& w) {
    return str(folder(), "/", kind, "/", w.definition, "/", w.uuid, ".safetensors");
  }
  // Its answer as an output, changed.
  template <class Change>
  static Verdict judged(const Workload& w, Change change, const std::string& compute = "") {
    const Safetensors answer(file_of("blob/expected", w));
    std::vector<std::pair<std::string, Tensor>> tensors;
    std::vector<std::vector<float>> memory;
    for (const char* name : {"o", "S"}) {
      const Tensor& t = answer.tensors().at(name);
      const auto* x = static_cast<const double*>(t.data);
      std::vector<float>& copy = memory.emplace_back(x, x + t.size());
      change(name, copy);
      copy.reserve(1);
      tensors.emplace_back(name, Tensor(copy.data(), DType::f32, std::span(t.shape.data(), t.rank)));
    }
    const std::string path = file_of("outputs", w);
    fs::create_directories(fs::path(path).parent_path());
    write_safetensors(path, tensors);
    return check(folder(), folder() + "/outputs", w, compute);
  }

 private:
  static inline std::unique_ptr<TemporaryFolder> made_;
};

TEST_F(Written, ItsOwnAnswersHold) {
  const std::vector<Workload> all = read_workloads(folder());
  EXPECT_EQ(all.size(), 17);
  for (const Workload& w : all) {
    EXPECT_FALSE(check(folder(), folder() + "/outputs", w, "").there);
    const Verdict v = judged(w, [](const std::string&, std::vector<float>&) {});
    EXPECT_TRUE(v.there && v.o.wrong.empty() && v.S.wrong.empty()) << w.uuid << v.o.wrong << v.S.wrong;
    EXPECT_GE(v.o.bound, 1e-5) << w.uuid;
  }
}

TEST_F(Written, OneElementShows) {
  const Workload w{"gated_delta_net_hk1_hv1_k64_v128", "lengths"};
  const auto off = [](double by) {
    return [by](const std::string& name, std::vector<float>& x) {
      if (name == "S") x[x.size() / 2] += static_cast<float>(by);
    };
  };
  EXPECT_FALSE(judged(w, off(0.5)).S.wrong.empty());
  EXPECT_TRUE(judged(w, off(0.5)).o.wrong.empty());
  EXPECT_FALSE(judged(w, off(2e-3)).S.wrong.empty());
  EXPECT_TRUE(judged(w, off(2e-3), "bfloat16").S.wrong.empty());
  EXPECT_FALSE(judged(w, off(NAN)).S.wrong.empty());
}

TEST(GoldenFolder, WhatIsNotThereIsAnError) {
  const TemporaryFolder folder;
  EXPECT_THROW(read_workloads(folder.path("none")), Error);
  EXPECT_THROW(write(folder.path("none"), {"none"}), Error);
  EXPECT_THROW(write(folder.path("none"), {"mamba1"}), Error);
}

}  // namespace
}  // namespace hypic::golden
