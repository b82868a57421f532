// Byte-level BPE in the style of Qwen2.5, Qwen3 and Qwen3.5.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace hypic {

// Immutable, cheap to copy; every member may be called from several threads at once.
class Tokenizer {
 public:
  // Reads `path`, which is one of
  //   a tokenizer.json of Hugging Face, or a folder with one: model BPE, normalizer NFC or none,
  //     pre-tokenizer Split(regex, Isolated) then ByteLevel;
  //   a folder with merges.txt and meta.json (and no tokenizer.json): ids 0..255 are the byte
  //     alphabet, printable bytes first, 256 + k is merge k; meta.json holds the rest in the layout
  //     of tokenizer.json, and base_vocab = 256 + number of merges.
  // Throws Error, with the path and the reason, for anything missing, malformed or unsupported.
  static Tokenizer load(const std::string& path);

  // The ids of `text` as Hugging Face's encode(text, add_special_tokens=False) gives them: added
  // tokens are matched first, longest first, then NFC, the regex and the merges on what lies
  // between. Letters newer than PCRE2's tables (Unicode 14 in 10.42) may be split another way.
  // Ill-formed UTF-8 reads as U+FFFD. Throws Error for more than 256 MiB, or when the file's regex
  // gives up on the text.
  std::vector<int32_t> encode(std::string_view text) const;

  // The text of `ids`, always valid UTF-8: what is cut inside a character becomes U+FFFD. Ids
  // without a token are left out, since models pad their vocabulary; so are special tokens if
  // `skip_special`.
  std::string decode(const std::vector<int32_t>& ids, bool skip_special = false) const;

  // The largest id + 1. A model's padded vocabulary may be larger.
  int vocab_size() const;

 private:
  struct Impl;
  explicit Tokenizer(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}
  std::shared_ptr<const Impl> impl_;
};

}  // namespace hypic
