#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "core/check.h"
#include "harness/cli/commands.h"

namespace hypic {
namespace {

// Their libraries are not on every machine that hypic runs on, so they are a program of their own, beside this one.
[[noreturn]] void become_cluster(char** argv) {
  std::error_code error;
  const std::filesystem::path program =
      std::filesystem::read_symlink("/proc/self/exe", error).parent_path() / "hypic-cluster";
  execv(program.c_str(), argv);
  fail(program.string(), ": ", std::strerror(errno),
       "; it is built where gRPC is found (libgrpc++-dev, "
       "protobuf-compiler-grpc)");
}

}  // namespace

void add_cluster(CLI::App& app, char** argv) {
  for (const auto& [name, what] :
       {std::pair("worker", "Compute segments for others, or answers with what others compute"),
        {"router", "Answer over HTTP with workers"}}) {
    CLI::App* command = app.add_subcommand(name, what);
    command->set_help_flag();
    command->set_help_all_flag();
    command->prefix_command();
    command->callback([argv] { become_cluster(argv); });
  }
}

}  // namespace hypic
