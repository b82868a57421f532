#include <CLI/CLI.hpp>
#include <iomanip>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>

#include "core/family.h"
#include "core/transfer_operator.h"
#include "harness/cli/commands.h"

namespace hypic {
namespace {

const char* operator_name(const FamilyTraits& family) {
  if (family.update == Update::nonlinear) return "none";
  constexpr const char* names[] = {"identity", "scalar", "diagonal", "elementwise", "dense"};
  return names[static_cast<int>(operator_kind(family.decay, family.update))];
}

void print_table() {
  const auto row = [](const auto&... cells) {
    ((std::cout << std::left << std::setw(21) << cells), ...) << "\n";
  };
  row("family", "decay", "update", "readout", "operator T", "moves with RoPE");
  for (const FamilyTraits& family : kFamilies)
    row(family.name, name_of(family.decay), name_of(family.update), name_of(family.readout),
        operator_name(family), family.relocatable ? "yes" : "no");
}

void print_json() {
  nlohmann::ordered_json all = nlohmann::ordered_json::array();
  for (const FamilyTraits& family : kFamilies)
    all.push_back({{"name", family.name},
                   {"decay", name_of(family.decay)},
                   {"update", name_of(family.update)},
                   {"readout", name_of(family.readout)},
                   {"operator", operator_name(family)},
                   {"side", family.side == Side::key ? "key" : "value"},
                   {"relocatable", family.relocatable}});
  std::cout << all.dump(2) << "\n";
}

}  // namespace

void add_families(CLI::App& app, int&) {
  CLI::App* command =
      app.add_subcommand("families", "List the linear-attention families and their operators");
  const auto json = std::make_shared<bool>(false);
  command->add_flag("--json", *json, "As JSON");
  command->callback([json] { *json ? print_json() : print_table(); });
}

}  // namespace hypic
