// Parts: rows; the dataset to read them as; if there, summaries, and the rows are documents.
#include "core/fuzz.h"
#include "core/temporary_folder.h"
#include "datasets/dataset.h"
#include "datasets/loader.h"

namespace hypic {
namespace {

void check(const TemporaryFolder& folder, std::string_view input) {
  const auto [rows, name, summaries] = parts_of<3>(input);
  std::string path = folder.write(summaries.empty() ? "qa/rows.json" : "qa/rows.src", rows);
  if (!summaries.empty()) folder.write("qa/rows.tgt", summaries);
  for (const Item& item : load_dataset(path, std::string(name))) {
    HYPIC_CHECK(!item.dataset.empty());
    // Rows of LongBench name any dataset; its protocol is known for some.
    takes([&] {
      std::string text;
      for (const std::string& segment : longbench_prompt(item).segments) text += segment;
      HYPIC_CHECK(text.find(item.context) != text.npos);
    });
  }
}

}  // namespace
}  // namespace hypic

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const hypic::TemporaryFolder folder;
  static const std::string evidence = folder.write("evidence/web/a.txt", "One two.\nThree.");
  hypic::takes([&] { hypic::check(folder, hypic::as_text(data, size)); });
  return 0;
}
