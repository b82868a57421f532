#include "reports/text.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "core/check.h"

namespace hypic {
namespace {

std::string chars(double value, std::chars_format format, int digits) {
  char buffer[400];  // fixed: 309 digits, point, 17 more
  auto end = std::to_chars(buffer, buffer + sizeof buffer, value, format, digits).ptr;
  return {buffer, end};
}

std::string without_trailing_zeros(std::string text) {
  if (text.find('.') == std::string::npos) return text;
  text.erase(text.find_last_not_of('0') + 1);
  if (text.back() == '.') text.pop_back();
  return text;
}

// 3.10e-06 → 3.1e-6
std::string scientific(double value, int digits, bool strip) {
  const std::string text = chars(value, std::chars_format::scientific, digits);
  const auto e = text.find('e');
  const std::string mantissa = text.substr(0, e);
  int exponent = 0;
  const char* first = text.data() + e + (text[e + 1] == '+' ? 2 : 1);
  std::from_chars(first, text.data() + text.size(), exponent);
  return (strip ? without_trailing_zeros(mantissa) : mantissa) + "e" + std::to_string(exponent);
}

std::string compact(double value) {
  const double size = std::abs(value);
  if (size < 1e9 && value == std::trunc(value))
    return chars(value == 0 ? 0 : value, std::chars_format::fixed, 0);
  if (size >= 1e6) return scientific(value, 3, true);
  if (size < 1e-3) return scientific(value, 1, true);
  const int before_point = std::max(1, static_cast<int>(std::floor(std::log10(size))) + 1);
  const int digits =
      size < 1 ? 3 - static_cast<int>(std::floor(std::log10(size))) : std::max(1, 4 - before_point);
  return without_trailing_zeros(chars(value, std::chars_format::fixed, digits));
}

struct Decoded {
  std::uint32_t point;
  std::size_t bytes;  // consumed
  bool valid;
};

// The character at the start of non-empty text. Rejects overlong forms and surrogates.
Decoded decode(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned lead = byte(0);
  if (lead < 0x80) return {lead, 1, true};
  const std::size_t length = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
  if (lead < 0xc2 || lead > 0xf4) return {0, 1, false};
  std::uint32_t point = lead & (0xffu >> (length + 1));
  for (std::size_t i = 1; i < length; ++i) {
    if (i == text.size() || (byte(i) & 0xc0) != 0x80) return {0, i, false};
    point = point << 6 | (byte(i) & 0x3f);
  }
  const bool valid = !(length == 3 && (point < 0x800 || (point >= 0xd800 && point < 0xe000))) &&
                     !(length == 4 && (point < 0x10000 || point > 0x10ffff));
  return {point, length, valid};
}

bool allowed_in_xml(std::uint32_t point) {
  if (point < 0x20) return point == '\t' || point == '\n' || point == '\r';
  // The second control block is allowed, but steers some terminals.
  return !(point >= 0x7f && point < 0xa0) && point != 0xfffe && point != 0xffff;
}

}  // namespace

std::string format_number(double value, Format format, int digits) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  digits = std::clamp(digits, 0, 17);
  switch (format) {
    case Format::compact:
      return compact(value);
    case Format::integer:
      return chars(value, std::chars_format::fixed, 0);
    case Format::fixed:
      return chars(value, std::chars_format::fixed, digits);
    case Format::scientific:
      return value == 0 ? "0" : scientific(value, digits, false);
    case Format::percent:
      return format_number(value * 100, Format::fixed, digits) + "%";
  }
  HYPIC_CHECK(false, "format ", static_cast<int>(format));
}

std::string format_exact(double value) {
  if (!std::isfinite(value)) return format_number(value);
  char buffer[64];
  return {buffer, std::to_chars(buffer, buffer + sizeof buffer, value).ptr};
}

std::string cell_text(const Cell& cell) {
  if (const auto* text = std::get_if<std::string>(&cell.content)) return *text;
  return format_number(std::get<double>(cell.content), cell.format, cell.digits);
}

std::string clean_text(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const Decoded next = decode(text);
    if (!next.valid)
      out += "\ufffd";
    else if (allowed_in_xml(next.point))
      out += text.substr(0, next.bytes);
    text.remove_prefix(next.bytes);
  }
  return out;
}

std::string escape_xml(std::string_view text) {
  std::string out;
  for (char c : clean_text(text)) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

std::string one_line(std::string_view text, std::size_t limit) {
  std::string out = clean_text(text.substr(0, limit + 4));  // 4: the character over the edge
  std::ranges::replace_if(
      out, [](char c) { return c == '\n' || c == '\r' || c == '\t'; }, ' ');
  if (text.size() <= limit && out.size() <= limit) return out;
  std::size_t end = std::min(limit, out.size());
  while (end > 0 && end < out.size() && (static_cast<unsigned char>(out[end]) & 0xc0) == 0x80)
    --end;
  return out.substr(0, end) + "…";
}

void write_file_atomically(const std::string& path, std::string_view text) {
  require(text.size() <= kMaxReportBytes, path, ": not written: ", text.size(), " bytes, at most ",
          kMaxReportBytes);
  const std::string temporary = str(path, ".tmp", ::getpid());
  const auto give_up = [&](const std::string& reason) {
    std::error_code ignored;
    std::filesystem::remove(temporary, ignored);
    fail(path, ": cannot write: ", reason);
  };
  std::ofstream out(temporary, std::ios::binary | std::ios::trunc);
  out.write(text.data(), static_cast<std::streamsize>(text.size()));
  out.close();
  if (!out) give_up(std::strerror(errno));
  std::error_code error;
  std::filesystem::rename(temporary, path, error);
  if (error) give_up(error.message());
}

}  // namespace hypic
