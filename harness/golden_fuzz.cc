#include "core/fuzz.h"
#include "core/temporary_folder.h"
#include "harness/cases/golden.h"

namespace hypic {
namespace {

// A line of workloads, or behind it an output for one that asks for o [1, 1, 1] and S [1, 1, 1, 1].
void check(const TemporaryFolder& folder, std::string_view input) {
  const auto [line, output] = parts_of<2>(input);
  const golden::Workload workload = golden::parse_workload(line, "d", "line");
  HYPIC_CHECK(workload.definition == "d" && workload.uuid.find('/') == workload.uuid.npos && workload.uuid != "..");
  const std::string file = "d/" + workload.uuid + ".safetensors";
  folder.write("outputs/" + file, output);
  folder.write("blob/expected/" + file, output);  // as untrusted as the output
  golden::check(folder.path(), folder.path() + "/outputs", workload, "");
}

}  // namespace
}  // namespace hypic

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const hypic::TemporaryFolder folder;
  hypic::takes([&] { hypic::check(folder, hypic::as_text(data, size)); });
  return 0;
}
