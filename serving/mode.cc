#include "serving/mode.h"

#include <algorithm>
#include <charconv>

#include "core/check.h"

namespace hypic {
namespace {

constexpr int kSeam = 8;
constexpr int kMaxSeam = 1 << 20;

int seam(std::string_view value, std::string_view text) {
  int n = 0;
  const auto [stop, error] = std::from_chars(value.data(), value.data() + value.size(), n);
  require(error == std::errc{} && stop == value.data() + value.size() && 0 <= n && n <= kMaxSeam,
          "mode \"", text, "\": \"", value, "\" is no seam width (0 … ", kMaxSeam, ")");
  return n;
}

Rotate rotate(std::string_view value, std::string_view text) {
  if (value == "on") return Rotate::on;
  if (value == "off") return Rotate::off;
  require(value == "built_at", "mode \"", text, "\": rotate is on, off or built_at, not \"", value,
          "\"");
  return Rotate::built_at;
}

}  // namespace

const std::vector<Mode>& modes() {
  static const std::vector<Mode> all = {
      {"full", Reuse::none},
      {"prefix", Reuse::prefix},
      {"addition", Reuse::segments, Compose::add, Rotate::off, 0, 0},
      {"addition_rope_seam", Reuse::segments, Compose::add, Rotate::on, kSeam, 0},
      {"last_block", Reuse::segments, Compose::last, Rotate::on, kSeam, 0},
      {"zero_state", Reuse::segments, Compose::zero, Rotate::on, kSeam, 0},
      {"transition", Reuse::segments, Compose::transfer, Rotate::off, 0, 0},
      {"transition_rope", Reuse::segments, Compose::transfer, Rotate::on, 0, 0},
      {"transition_rope_seam", Reuse::segments, Compose::transfer, Rotate::on, kSeam, 0},
      {"two_sided_seam", Reuse::segments, Compose::transfer, Rotate::on, kSeam, kSeam},
  };
  return all;
}

Mode mode_named(std::string_view text) {
  const std::string_view name = text.substr(0, text.find(':'));
  std::string known;
  for (const Mode& mode : modes()) {
    known += str(known.empty() ? "" : ", ", mode.name);
    if (mode.name != name) continue;
    Mode chosen = mode;
    chosen.name = text;
    for (size_t at = name.size(); at < text.size();) {
      const size_t end = std::min(text.find(':', at + 1), text.size());
      const std::string_view option = text.substr(at + 1, end - at - 1);
      const size_t equals = option.find('=');
      const std::string_view key = option.substr(0, equals);
      const std::string_view value = equals == option.npos ? "" : option.substr(equals + 1);
      require(chosen.reuse == Reuse::segments, "mode \"", text, "\": ", name, " takes no options");
      if (key == "head")
        chosen.head = seam(value, text);
      else if (key == "tail")
        chosen.tail = seam(value, text);
      else if (key == "rotate")
        chosen.rotate = rotate(value, text);
      else
        fail("mode \"", text, "\": unknown option \"", option,
             "\"; head=, tail=, rotate= are known");
      at = end;
    }
    return chosen;
  }
  fail("unknown mode \"", text, "\"; known: ", known);
}

}  // namespace hypic
