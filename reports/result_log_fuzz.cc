#include "core/fuzz.h"
#include "core/temporary_folder.h"
#include "reports/result_log.h"
#include "reports/write.h"

namespace hypic {
namespace {

// The file as it is; then each of its lines as a result to append, since a line without its digest
// is never read.
void check(const TemporaryFolder& folder, std::string_view text) {
  const std::string path = folder.write("results.jsonl", text);
  takes([&] { ResultLog log(folder.path()); });

  ResultLog log(folder.path(), false);
  size_t count = 0;
  for (size_t end; (end = text.find('\n')) != text.npos; text.remove_prefix(end + 1))
    count += takes([&] { log.append(result_from_json(text.substr(0, end), "line")); });
  HYPIC_CHECK(log.finished().size() == count);
}

void check_again(const TemporaryFolder& folder) {
  const ResultLog log(folder.path());
  ResultLog empty(folder.path() + "/copy", false);
  for (const Result& result : log.finished()) empty.append(result);
  for (size_t i = 0; i < log.finished().size(); ++i)
    HYPIC_CHECK(to_json(log.finished()[i]) == to_json(empty.finished()[i]));
}

}  // namespace
}  // namespace hypic

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const hypic::TemporaryFolder folder;
  hypic::check(folder, hypic::as_text(data, size));
  hypic::check_again(folder);
  return 0;
}
