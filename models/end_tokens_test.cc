#include "models/end_tokens.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include "core/check.h"
#include "core/temporary_folder.h"

namespace hypic {
namespace {

using Ids = std::vector<int32_t>;

class EndTokens : public testing::Test {
 protected:
  void write(const char* name, const char* text) { made.write(name, text); }
  const TemporaryFolder made;
  const std::string& folder = made.path();
};

TEST_F(EndTokens, TheGenerationConfigSaysFirst) {
  EXPECT_EQ(end_tokens("random:qwen3.5-tiny", 10), Ids());
  EXPECT_EQ(end_tokens(folder, 10), Ids());
  write("config.json", R"({"text_config": {"eos_token_id": 5}})");
  EXPECT_EQ(end_tokens(folder, 10), Ids({5}));
  write("config.json", R"({"eos_token_id": 7, "text_config": {"eos_token_id": 5}})");
  EXPECT_EQ(end_tokens(folder, 10), Ids({7}));
  write("generation_config.json", R"({"eos_token_id": null})");
  EXPECT_EQ(end_tokens(folder, 10), Ids({7}));
  write("generation_config.json", R"({"eos_token_id": [3, 4]})");
  EXPECT_EQ(end_tokens(folder, 10), Ids({3, 4}));
}

TEST_F(EndTokens, WhatIsNoTokenIsRefused) {
  for (const char* text : {R"({"eos_token_id": -1})", R"({"eos_token_id": "</s>"})", R"({"eos_token_id": [1, 2.5]})",
                           R"({"eos_token_id": 10})"}) {
    write("config.json", text);
    EXPECT_THROW(end_tokens(folder, 10), Error) << text;
  }
  write("config.json", "{");
  EXPECT_THROW(end_tokens(folder, 10), Error);
}

}  // namespace
}  // namespace hypic
