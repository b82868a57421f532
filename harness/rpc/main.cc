// hypic-cluster: what `hypic worker` and `hypic router` run; exit codes as of hypic.
#include <CLI/CLI.hpp>
#include <iostream>

#include "core/check.h"
#include "harness/rpc/commands.h"
#include "reports/text.h"

int main(int argc, char** argv) {
  CLI::App app{"Segment parallelism over several processes: workers and their router.", "hypic"};
  app.require_subcommand(1);
  app.set_version_flag("--version", HYPIC_VERSION);
  int status = 0;
  hypic::add_worker(app, status);
  hypic::add_router(app, status);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  } catch (const hypic::Error& error) {
    std::cerr << "hypic: " << hypic::one_line(error.what()) << "\n";
    return 2;
  } catch (const std::bad_alloc&) {
    std::cerr << "hypic: out of memory\n";
    return 3;
  } catch (const std::exception& error) {
    std::cerr << "hypic: internal error, please report it: " << error.what() << "\n";
    return 3;
  }
  return status;
}
