#include "harness/exit_code.h"

#include <gtest/gtest.h>

#include <CLI/CLI.hpp>
#include <string>

namespace hypic {
namespace {

TEST(ExitCode, ArgumentsThatAreNoTextAreWrongUsage) {
  const auto status_of = [](const char* name) {
    CLI::App app;
    std::string given;
    app.add_option("--name", given);
    const char* argv[] = {"program", "--name", name};
    return exit_code(app, "program", [&] {
      parse(app, 3, argv);
      return given == name ? 0 : 9;
    });
  };
  EXPECT_EQ(status_of("caf\xc3\xa9"), 0);
  for (const char* bad : {"\xff", "a\xc3", "\xed\xa0\x80", "\xc0\x80"}) EXPECT_EQ(status_of(bad), 2) << bad;
}

}  // namespace
}  // namespace hypic
