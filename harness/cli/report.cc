#include "reports/report.h"

#include <CLI/CLI.hpp>
#include <filesystem>
#include <iostream>
#include <memory>

#include "core/check.h"
#include "harness/cli/commands.h"
#include "reports/write.h"

namespace hypic {

void add_report(CLI::App& app, int& status) {
  CLI::App* command = app.add_subcommand(
      "report",
      "Print a report as Markdown; with --out, write all its forms again. Exits as the run did");
  const auto path = std::make_shared<std::string>(), out = std::make_shared<std::string>();
  command->add_option("report", *path, "A report.json, or the folder of one")->required();
  command->add_option("--out", *out, "Folder for report.html, report.md, report.json, junit.xml");
  command->callback([path, out, &status] {
    std::error_code error;
    const bool folder = std::filesystem::is_directory(*path, error);
    const std::string file = folder ? *path + "/report.json" : *path;
    require(!folder || std::filesystem::exists(file, error) || !std::filesystem::exists(*path + "/results.jsonl", error),
            *path, ": no report yet, only results of an unfinished run; hypic run … --resume goes on with it");
    const Report report = read_report(file);
    if (out->empty())
      std::cout << to_markdown(report);
    else
      write_report(report, *out);
    status = exit_code(report);
  });
}

}  // namespace hypic
