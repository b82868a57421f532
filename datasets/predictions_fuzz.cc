// Parts: the rows that `hypic score` reads; a dataset.
#include "core/fuzz.h"
#include "core/temporary_folder.h"
#include "datasets/score.h"

namespace hypic {
namespace {

void check(const TemporaryFolder& folder, std::string_view input) {
  const auto [rows, name] = parts_of<2>(input);
  const std::string path = folder.write("predictions", rows);
  const auto scores = score_file(path, dataset_traits(name.empty() ? "hotpotqa" : name));
  for (const double score : scores) HYPIC_CHECK(0 <= score && score <= 1, score);
}

}  // namespace
}  // namespace hypic

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const hypic::TemporaryFolder folder;
  hypic::takes([&] { hypic::check(folder, hypic::as_text(data, size)); });
  return 0;
}
