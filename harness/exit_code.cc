#include "harness/exit_code.h"

#include <CLI/CLI.hpp>
#include <iostream>
#include <new>

#include "core/check.h"
#include "reports/text.h"

namespace hypic {

int exit_code(const CLI::App& app, const char* program, const std::function<int()>& run) {
  try {
    return run();
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
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

}  // namespace hypic
