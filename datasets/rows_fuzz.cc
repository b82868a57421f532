#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/fuzz.h"
#include "core/temporary_folder.h"
#include "datasets/rows.h"

namespace hypic {
namespace {

void check(const TemporaryFolder& folder, std::string_view text) {
  const std::string path = folder.write("rows", text);
  takes([&] {
    RowReader rows(path);
    size_t count = 0;
    for (nlohmann::json row; rows.next(row);) ++count;
    HYPIC_CHECK(count <= text.size());
  });
  takes([&] {
    constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
    RowReader rows(path);
    if (text.starts_with(kByteOrderMark)) text.remove_prefix(kByteOrderMark.size());
    for (std::string line; rows.next_line(line);) {
      const size_t end = std::min(text.find('\n'), text.size());
      std::string_view expected = text.substr(0, end);
      if (expected.ends_with('\r')) expected.remove_suffix(1);
      HYPIC_CHECK(line == expected, rows.where());
      text.remove_prefix(std::min(end + 1, text.size()));
    }
    HYPIC_CHECK(text.empty());
  });
}

}  // namespace
}  // namespace hypic

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const hypic::TemporaryFolder folder;
  hypic::check(folder, hypic::as_text(data, size));
  return 0;
}
