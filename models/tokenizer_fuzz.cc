// Parts: tokenizer.json, or meta.json if merges follow; merges.txt; a text. In a tokenizer.json,
// "BYTES":0 stands for the 256 tokens of the byte alphabet, which every vocabulary needs.
#include "core/fuzz.h"
#include "core/temporary_folder.h"
#include "models/tokenizer.h"

namespace hypic {
namespace {

std::string byte_tokens() {
  std::string out;
  int next = 256;
  for (int byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte != 0xad);
    const int c = printable ? byte : next++;
    std::string token;
    if (c == '"' || c == '\\') token = '\\';
    if (c < 0x80) {
      token += char(c);
    } else {
      token += char(0xc0 | c >> 6);
      token += char(0x80 | (c & 0x3f));
    }
    out += str(byte ? "," : "", "\"", token, "\":", byte);
  }
  return out;
}

std::string with_byte_tokens(std::string_view json) {
  static const std::string tokens = byte_tokens();
  constexpr std::string_view kMark = "\"BYTES\":0";
  std::string out(json);
  if (const size_t at = out.find(kMark); at != out.npos) out.replace(at, kMark.size(), tokens);
  return out;
}

void check(const TemporaryFolder& folder, std::string_view input) {
  const auto [json, merges, text] = parts_of<3>(input);
  std::string path;
  if (merges.empty()) {
    path = folder.write("tokenizer.json", with_byte_tokens(json));
  } else {
    folder.write("folder/meta.json", json);
    folder.write("folder/merges.txt", merges);
    path = folder.path() + "/folder";
  }
  const Tokenizer tokenizer = Tokenizer::load(path);
  for (const std::string_view sample :
       {text, std::string_view("It's 12 tests,\n  aab\u00e9 <|end|>")}) {
    takes([&] {
      const std::vector<int32_t> ids = tokenizer.encode(sample);
      for (const int32_t id : ids) HYPIC_CHECK(0 <= id && id < tokenizer.vocab_size(), id);
      tokenizer.decode(ids, true);
    });
  }
}

}  // namespace
}  // namespace hypic

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const hypic::TemporaryFolder folder;
  hypic::takes([&] { hypic::check(folder, hypic::as_text(data, size)); });
  return 0;
}
