#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/fuzz.h"
#include "core/json.h"

namespace hypic {
namespace {

void check(std::string_view text) {
  const nlohmann::json value = parse_json(text, "input");
  HYPIC_CHECK(parse_json(value.dump(), "dump") == value, value.dump());
  const std::string line = shown(value);
  HYPIC_CHECK(line.size() < 100 && std::none_of(line.begin(), line.end(), [](unsigned char c) {
                return c < 0x20 || c == 0x7f;
              }));
  takes([&] { check_json(text, "input", {.depth = 3, .keys = 2, .name_line = false}); });
}

}  // namespace
}  // namespace hypic

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  hypic::takes([&] { hypic::check(hypic::as_text(data, size)); });
  return 0;
}
