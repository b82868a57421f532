#include "datasets/rows.h"

#include <cstdio>
#include <iostream>
#include <nlohmann/json.hpp>

#include "core/check.h"
#include "core/json.h"

namespace hypic {
namespace {

constexpr size_t kBufferBytes = size_t{64} << 10;

bool is_space(int c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; }

std::string without_space(const std::string& text) {
  std::string out;
  for (const char c : text)
    if (!is_space(c)) out += c;
  return out;
}

}  // namespace

RowReader::RowReader(const std::string& path)
    : path_(path), in_(&std::cin), buffer_(std::make_unique<char[]>(kBufferBytes)) {
  if (path != "-") {
    file_.open(path, std::ios::binary);
    in_ = &file_;
    require(file_.good(), path, ": cannot be opened; check that it exists and is readable");
  }
  constexpr int kByteOrderMark[] = {0xEF, 0xBB, 0xBF};
  if (peek() == kByteOrderMark[0])
    for (const int byte : kByteOrderMark)
      require(get() == byte, path, ": starts with a broken byte order mark; it must be UTF-8");
}

std::string RowReader::where() const { return str(path_, ":", row_line_); }

int RowReader::peek() {
  if (at_ == size_) {
    if (!*in_) return EOF;
    in_->read(buffer_.get(), kBufferBytes);
    at_ = 0;
    size_ = in_->gcount();
    require(!in_->bad(), path_, ": cannot be read; is it a folder?");
    if (size_ == 0) return EOF;
  }
  return static_cast<unsigned char>(buffer_[at_]);
}

bool RowReader::starts_with(std::string_view text) {
  return peek() != EOF && std::string_view(&buffer_[at_], size_ - at_).starts_with(text);
}

int RowReader::get() {
  const int c = peek();
  if (c != EOF) ++at_;
  if (c == '\n') ++line_;
  return c;
}

int RowReader::skip_space() {
  while (is_space(peek())) get();
  return peek();
}

void RowReader::append(std::string& text) {
  if (text.size() >= kMaxRowBytes) fail(where(), ": the row is over ", kMaxRowBytes >> 20, " MiB");
  text += char(get());
}

bool RowReader::next_line(std::string& text) {
  text.clear();
  row_line_ = line_;
  if (peek() == EOF) return false;
  while (peek() != EOF && peek() != '\n') append(text);
  get();
  if (text.ends_with('\r')) text.pop_back();
  return true;
}

bool RowReader::next(nlohmann::json& row) {
  std::string text;
  if (!next_text(text)) return false;
  row = parse_json(text, where(), {.name_line = false});
  return true;
}

// The text of the next value, which need not be well-formed.
bool RowReader::next_text(std::string& text) {
  text.clear();
  if (in_what_ == In::after) return false;
  if (in_what_ == In::start) {
    const bool array = skip_space() == '[';
    if (array) get();
    in_what_ = array ? In::array : In::lines;
  }
  int c = skip_space();
  while (in_what_ == In::array && c == ',') {
    get();
    c = skip_space();
  }
  row_line_ = line_;
  if (c == EOF) {
    require(in_what_ != In::array, where(), ": the file ends inside its array; is it cut short?");
    return false;
  }
  if (in_what_ == In::array && c == ']') {
    in_what_ = In::after;  // what may follow the array "Data" says nothing on its rows
    return false;
  }
  if (c != '{' && c != '[') {  // no row of ours; the caller says so
    while (peek() != EOF && peek() != '\n') append(text);
    return true;
  }
  int depth = 0;
  bool in_string = false;
  do {
    c = peek();
    if (c == EOF || (in_string && c == '\n')) return true;  // cut short, as the parser will say
    append(text);
    if (in_string) {
      if (c == '\\' && peek() != EOF && peek() != '\n') append(text);
      in_string = c != '"';
      continue;
    }
    in_string = c == '"';
    if (c == '{' || c == '[') ++depth;
    if (c == '}' || c == ']') --depth;
    if (c == '[' && depth == 2 && in_what_ == In::lines && text.size() < 64 &&
        without_space(text) == "{\"Data\":[") {
      in_what_ = In::array;
      return next_text(text);
    }
  } while (depth > 0);
  return true;
}

}  // namespace hypic
