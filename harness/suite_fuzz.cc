#include "core/fuzz.h"
#include "core/temporary_folder.h"
#include "harness/suite.h"

namespace hypic {
namespace {

// Every way to read a parameter, of what the suite happens to hold.
void read_parameters(const SuiteCase& suite_case) {
  Parameters parameters(suite_case.parameters, "parameters");
  for (const auto& item : suite_case.parameters.items()) {
    const std::string& key = item.key();
    takes([&] {
      const int64_t n = parameters.integer(key, 0, -5, 5);
      HYPIC_CHECK(-5 <= n && n <= 5 && item.value().dump() == std::to_string(n), key);
    });
    takes([&] { parameters.text(key, ""); });
    takes([&] { parameters.texts(key, {}); });
    takes([&] { parameters.numbers(key, {}); });
    takes([&] {
      for (const int64_t n : parameters.integers(key, {}, -5, 5)) HYPIC_CHECK(-5 <= n && n <= 5);
    });
  }
  parameters.refuse_others();
}

void check(const TemporaryFolder& folder, std::string_view text) {
  const Suite suite = load_suite(folder.write("suite.json", text));
  HYPIC_CHECK(!suite.cases.empty());
  for (const SuiteCase& suite_case : suite.cases) {
    HYPIC_CHECK(!suite_case.name.empty());
    read_parameters(suite_case);
  }
}

}  // namespace
}  // namespace hypic

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const hypic::TemporaryFolder folder;
  hypic::takes([&] { hypic::check(folder, hypic::as_text(data, size)); });
  return 0;
}
