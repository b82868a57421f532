#include "harness/exit_code.h"

#include <CLI/CLI.hpp>
#include <iostream>
#include <new>
#include <nlohmann/json.hpp>

#include "core/check.h"
#include "reports/text.h"

namespace hypic {

int exit_code(const CLI::App& app, const char* program, const std::function<int()>& run) {
  try {
    return run();
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // help, version
    std::string command = program;
    const CLI::App* at = &app;
    for (; !at->get_subcommands().empty(); at = at->get_subcommands().front())
      command += " " + at->get_subcommands().front()->get_name();
    const std::vector<std::string> rest = at->remaining();
    const bool unknown = at->get_require_subcommand_min() > 0 && at->get_subcommands().empty() && !rest.empty();
    std::cerr << command << ": "
              << one_line(unknown ? str("there is no command \"", rest.front(), "\"") : std::string(error.what()))
              << "; " << command << " --help says more\n";
    return 2;
  } catch (const Error& error) {
    std::cerr << program << ": " << one_line(error.what()) << "\n";
    return 2;
  } catch (const std::bad_alloc&) {
    std::cerr << program << ": out of memory\n";
    return 3;
  } catch (const std::exception& error) {
    std::cerr << program << ": internal error, please report it: " << error.what() << "\n";
    return 3;
  }
}

void parse(CLI::App& app, int argc, const char* const* argv) {
  for (int i = 1; i < argc; ++i) {
    try {
      static_cast<void>(nlohmann::json(argv[i]).dump());
    } catch (const nlohmann::json::exception&) {
      fail("argument ", i, " is no UTF-8: ", one_line(argv[i]));
    }
  }
  app.parse(argc, argv);
}

}  // namespace hypic
