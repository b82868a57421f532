#include "core/fuzz.h"
#include "core/temporary_folder.h"
#include "reports/write.h"

namespace hypic {
namespace {

void check(const TemporaryFolder& folder, std::string_view text) {
  const Report report = read_report(folder.write("report.json", text));
  const std::string json = to_json(report);
  HYPIC_CHECK(to_json(report_from_json(json, "json")) == json);
  for (const std::string& page : {to_html(report), to_markdown(report), to_junit(report)})
    HYPIC_CHECK(!page.empty());
  exit_code(report);
}

}  // namespace
}  // namespace hypic

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const hypic::TemporaryFolder folder;
  hypic::takes([&] { hypic::check(folder, hypic::as_text(data, size)); });
  return 0;
}
