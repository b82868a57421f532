// hypic-cluster: what `hypic worker` and `hypic router` run; exit codes as of hypic.
#include <CLI/CLI.hpp>
#include <cstdlib>

#include "harness/exit_code.h"
#include "harness/rpc/commands.h"

int main(int argc, char** argv) {
  setenv("GRPC_VERBOSITY", "NONE", 0);  // what gRPC logs, ours says in words; set it to see the rest
  CLI::App app{"Segment parallelism over several processes: workers and their router.", "hypic"};
  app.require_subcommand(1);
  app.set_version_flag("--version", HYPIC_VERSION);
  int status = 0;
  hypic::add_worker(app, status);
  hypic::add_router(app, status);
  return hypic::exit_code(app, "hypic", [&] {
    hypic::parse(app, argc, argv);
    return status;
  });
}
