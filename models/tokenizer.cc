#include "models/tokenizer.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <unicode/bytestream.h>
#include <unicode/normalizer2.h>
#include <unicode/uchar.h>
#include <unicode/utf8.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <nlohmann/json.hpp>
#include <unordered_map>

#include "core/check.h"
#include "core/file.h"
#include "core/json.h"

namespace hypic {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

constexpr int32_t kMaxTokens = 1 << 22;
constexpr size_t kMaxFileBytes = size_t{1} << 28;
constexpr size_t kMaxTextBytes = size_t{1}
                                 << 28;  // NFC may triple it, ICU and the merges count in int32

struct FreePattern {
  void operator()(pcre2_code* code) const { pcre2_code_free(code); }
};
struct FreeMatch {
  void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
  void operator()(pcre2_match_context* context) const { pcre2_match_context_free(context); }
};

struct AddedToken {
  std::string content;
  int32_t id = 0;
  bool special = false;
};

// A merge of two neighbouring tokens into one; its index is its rank, the lowest goes first.
struct Merge {
  int32_t left, right, merged;
};

uint64_t pair_key(int32_t left, int32_t right) { return uint64_t(left) << 32 | uint32_t(right); }

// What both file formats say, tokens still spelled in the byte alphabet.
struct Definition {
  std::string path;  // for messages
  std::unordered_map<std::string, int32_t> vocab;
  std::vector<std::pair<std::string, std::string>> merges;
  std::vector<AddedToken> added;
  std::string pattern;
  bool nfc = false;
};

// GPT-2's byte alphabet: printable bytes stand for themselves, the others for U+0100, U+0101, …
bool is_printable(int byte) {
  return (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte != 0xad);
}

std::array<UChar32, 256> make_byte_alphabet() {
  std::array<UChar32, 256> alphabet;
  UChar32 next = 256;
  for (int byte = 0; byte < 256; ++byte) alphabet[byte] = is_printable(byte) ? byte : next++;
  return alphabet;
}
const std::array<UChar32, 256> kByteAlphabet = make_byte_alphabet();

std::string byte_symbol(int byte) {
  const UChar32 c = kByteAlphabet[byte];
  if (c < 0x80) return {char(c)};
  return {char(0xc0 | c >> 6), char(0x80 | (c & 0x3f))};
}

// The bytes that a token of the vocabulary stands for; one with a character outside the alphabet
// stands for its own text.
std::string token_bytes(const std::string& token) {
  static const auto byte_of = [] {
    std::unordered_map<UChar32, char> map;
    for (int byte = 0; byte < 256; ++byte) map[kByteAlphabet[byte]] = char(byte);
    return map;
  }();
  std::string bytes;
  for (std::ptrdiff_t i = 0, n = std::ssize(token); i < n;) {
    UChar32 c;
    U8_NEXT(token.data(), i, n, c);
    const auto found = byte_of.find(c);
    if (found == byte_of.end()) return token;
    bytes += found->second;
  }
  return bytes;
}

// `text` with every maximal ill-formed part replaced by U+FFFD, as Rust's from_utf8_lossy does.
std::string valid_utf8(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (std::ptrdiff_t i = 0, n = std::ssize(text); i < n;) {
    const std::ptrdiff_t begin = i;
    UChar32 c;
    U8_NEXT(text.data(), i, n, c);
    out += c >= 0 ? text.substr(begin, i - begin) : "\uFFFD";
  }
  return out;
}

// `text` with every run of combining marks in canonical order. NFC does the same, but ICU inserts
// the marks one by one, which takes minutes on a megabyte of them.
std::string in_canonical_order(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  std::vector<std::pair<int, std::string_view>> run;  // combining class, character
  const auto flush = [&] {
    std::stable_sort(run.begin(), run.end(),
                     [](const auto& a, const auto& b) { return a.first < b.first; });
    for (const auto& mark : run) out += mark.second;
    run.clear();
  };
  for (std::ptrdiff_t i = 0, n = std::ssize(text); i < n;) {
    const std::ptrdiff_t begin = i;
    UChar32 c;
    U8_NEXT(text.data(), i, n, c);
    const int combining_class = u_getCombiningClass(c);
    if (combining_class == 0) flush();
    run.emplace_back(combining_class, text.substr(begin, i - begin));
  }
  flush();
  return out;
}

std::string to_nfc(std::string_view text) {
  // Below U+0300 there is nothing to compose or reorder.
  if (std::none_of(text.begin(), text.end(), [](char c) { return uint8_t(c) >= 0xcc; }))
    return std::string(text);
  UErrorCode status = U_ZERO_ERROR;
  const icu::Normalizer2* normalizer = icu::Normalizer2::getNFCInstance(status);
  const std::string ordered = in_canonical_order(text);
  std::string out;
  icu::StringByteSink<std::string> sink(&out, int32_t(ordered.size()));
  if (U_SUCCESS(status)) normalizer->normalizeUTF8(0, ordered, sink, nullptr, status);
  HYPIC_CHECK(U_SUCCESS(status), "ICU: ", u_errorName(status));
  return out;
}

json parse_file(const fs::path& path) {
  return parse_json(read_file(path.string(), kMaxFileBytes), path.string());
}

// A member that may be absent or null.
const json& member(const json& object, const char* name) {
  static const json null;
  const auto found = object.find(name);
  return found == object.end() ? null : *found;
}

bool is_type(const json& object, const char* type) {
  return object.is_object() && member(object, "type") == type;
}

bool flag(const json& object, const char* name) {
  const json& value = member(object, name);
  return !value.is_null() && value.get<bool>();
}

int32_t token_id(const std::string& path, const std::string& token, const json& value) {
  if (!is_integer_in(value, 0, kMaxTokens - 1)) {
    fail(path, ": the id of token \"", token, "\" is ", shown(value),
         "; it must be a whole number below ", kMaxTokens);
  }
  return value.get<int32_t>();
}

bool read_normalizer(const std::string& path, const json& normalizer) {
  if (normalizer.is_null()) return false;
  const auto require_nfc = [&](const json& part) {
    require(is_type(part, "NFC"), path, ": normalizer ", shown(member(part, "type")),
            " is not supported; only NFC or none");
  };
  if (!is_type(normalizer, "Sequence")) {
    require_nfc(normalizer);
    return true;
  }
  const json& parts = normalizer.at("normalizers");
  for (const json& part : parts) require_nfc(part);
  return !parts.empty();
}

// `pattern` with \s and \S spelled as Unicode's White_Space: PCRE2 adds U+180E to \s, Hugging Face
// does not. Both spellings work inside and outside of [].
std::string with_unicode_spaces(std::string_view pattern) {
  std::string out;
  for (size_t i = 0; i < pattern.size(); ++i) {
    const std::string_view escape = pattern.substr(i, pattern[i] == '\\' ? 2 : 1);
    out += escape == "\\s" ? "\\p{White_Space}" : escape == "\\S" ? "\\P{White_Space}" : escape;
    i += escape.size() - 1;
  }
  return out;
}

std::string read_pattern(const std::string& path, const json& pre_tokenizer) {
  const char* wanted =
      "; only Split(Regex, Isolated) followed by ByteLevel without regex or prefix";
  require(is_type(pre_tokenizer, "Sequence"), path, ": this pre_tokenizer is not supported",
          wanted);
  const json& parts = pre_tokenizer.at("pretokenizers");
  require(parts.size() == 2 && is_type(parts.at(0), "Split") && is_type(parts.at(1), "ByteLevel"),
          path, ": this sequence of pre-tokenizers is not supported", wanted);
  const json &split = parts[0], &byte_level = parts[1];
  require(split.at("behavior") == "Isolated" && !flag(split, "invert") &&
              split.at("pattern").contains("Regex") && !flag(byte_level, "use_regex") &&
              !flag(byte_level, "add_prefix_space"),
          path, ": these pre-tokenizer settings are not supported", wanted);
  return with_unicode_spaces(split["pattern"]["Regex"].get<std::string>());
}

std::vector<AddedToken> read_added_tokens(const std::string& path, const json& tokens, bool nfc) {
  std::vector<AddedToken> added;
  for (const json& token : tokens) {
    const auto content = token.at("content").get<std::string>();
    require(!content.empty(), path, ": an added token is empty");
    require(!flag(token, "single_word") && !flag(token, "lstrip") && !flag(token, "rstrip") &&
                !(nfc && flag(token, "normalized")),
            path, ": added token \"", content,
            "\" sets single_word, lstrip, rstrip or normalized, which are not supported");
    added.push_back({content, token_id(path, content, token.at("id")), flag(token, "special")});
  }
  return added;
}

// What tokenizer.json and meta.json share.
Definition read_common(const std::string& path, const json& root) {
  Definition def;
  def.path = path;
  def.nfc = read_normalizer(path, member(root, "normalizer"));
  def.pattern = read_pattern(path, member(root, "pre_tokenizer"));
  def.added = read_added_tokens(path, member(root, "added_tokens"), def.nfc);
  return def;
}

Definition read_tokenizer_json(const std::string& path, const json& root) {
  const json& model = root.at("model");
  // Old files leave the type out.
  const json& type = member(model, "type");
  require(type.is_null() || type == "BPE", path, ": a tokenizer model of type ", shown(type),
          " is not supported; only byte-level BPE");
  require(!flag(model, "byte_fallback") && !flag(model, "ignore_merges"), path,
          ": BPE with byte_fallback or ignore_merges is not supported; only byte-level BPE");
  for (const char* name : {"dropout", "continuing_subword_prefix", "end_of_word_suffix"}) {
    const json& value = member(model, name);
    require(value.is_null() || value == "" || value == 0.0, path, ": BPE with ", name, " ",
            shown(value), " is not supported");
  }
  Definition def = read_common(path, root);
  for (const auto& [token, id] : model.at("vocab").items())
    def.vocab.emplace(token, token_id(path, token, id));
  for (const json& merge : model.at("merges")) {
    if (merge.is_string()) {
      const auto& text = merge.get_ref<const std::string&>();
      const size_t space = text.find(' ');
      require(space != text.npos, path, ": merge ", def.merges.size(), " \"", text,
              "\" is not two tokens with a space between");
      def.merges.emplace_back(text.substr(0, space), text.substr(space + 1));
    } else {
      require(merge.size() == 2, path, ": merge ", def.merges.size(), " is not a pair");
      def.merges.emplace_back(merge.at(0).get<std::string>(), merge.at(1).get<std::string>());
    }
  }
  return def;
}

Definition read_merges(const std::string& path, const std::string& merges, const json& meta) {
  Definition def = read_common(path, meta);
  for (const bool printable : {true, false}) {
    for (int byte = 0; byte < 256; ++byte) {
      if (is_printable(byte) == printable)
        def.vocab.emplace(byte_symbol(byte), int32_t(def.vocab.size()));
    }
  }
  for (size_t begin = 0; begin < merges.size();) {
    const size_t end = std::min(merges.find('\n', begin), merges.size());
    const std::string line = merges.substr(begin, end - begin);
    const size_t space = line.find(' ');
    if (space == line.npos || def.vocab.size() >= kMaxTokens ||
        !def.vocab.emplace(std::string(line).erase(space, 1), int32_t(def.vocab.size())).second) {
      fail(path, "/merges.txt:", def.merges.size() + 1,
           ": not two tokens with a space between that make a new one");
    }
    def.merges.emplace_back(line.substr(0, space), line.substr(space + 1));
    begin = end + 1;
  }
  require(meta.at("base_vocab") == def.vocab.size(), path, ": merges.txt and the bytes make ",
          def.vocab.size(), " tokens, base_vocab in meta.json is ", shown(meta["base_vocab"]),
          "; one of the files is cut or from another tokenizer");
  return def;
}

Definition read_definition(const fs::path& path) {
  const bool folder = fs::is_directory(path);
  require(folder || fs::exists(path), path.string(),
          ": no such file or folder; give a tokenizer.json or the folder that holds one");
  const fs::path file = folder ? path / "tokenizer.json" : path;
  const fs::path meta = path / "meta.json";
  if (fs::exists(file)) return read_tokenizer_json(file.string(), parse_file(file));
  require(fs::exists(meta), path.string(),
          ": holds neither tokenizer.json nor merges.txt with meta.json");
  return read_merges(path.string(), read_file((path / "merges.txt").string(), kMaxFileBytes), parse_file(meta));
}

}  // namespace

struct Tokenizer::Impl {
  explicit Impl(const Definition& def);

  // One call of encode: the ids so far and buffers that its pieces share.
  struct Encoder {
    struct Symbol {
      int32_t id, previous, next;  // previous, next: -1 at the ends; id: -1 once merged away
    };
    const Impl& impl;
    std::vector<int32_t> ids;
    std::vector<Symbol> symbols;
    std::vector<uint64_t> heap;  // rank << 32 | left symbol, the smallest on top
    std::unique_ptr<pcre2_match_data, FreeMatch> match{pcre2_match_data_create(1, nullptr)};
    std::unique_ptr<pcre2_match_context, FreeMatch> limits{pcre2_match_context_create(nullptr)};

    void add_fragment(std::string_view text);
    void add_piece(std::string_view piece);
    void push_pair(int32_t left);
  };

  const AddedToken* added_token_at(std::string_view text) const;

  std::vector<std::string> bytes;  // by id; empty where the id has no token
  std::vector<bool> special;       // by id
  std::vector<Merge> merges;
  std::unordered_map<uint64_t, int32_t> rank_of_pair;
  std::array<int32_t, 256> id_of_byte;
  std::array<std::vector<AddedToken>, 256> added;  // by first byte, longest first
  std::unique_ptr<pcre2_code, FreePattern> pattern;
  bool nfc;
};

Tokenizer::Impl::Impl(const Definition& def) : nfc(def.nfc) {
  const auto place = [&](const std::string& token, int32_t id, std::string text) {
    if (id >= std::ssize(bytes)) {
      bytes.resize(id + 1);
      special.resize(id + 1);
    }
    require(bytes[id].empty(), def.path, ": token \"", token, "\" has id ", id,
            ", which another token has already");
    bytes[id] = std::move(text);
  };
  for (const auto& [token, id] : def.vocab) place(token, id, token_bytes(token));
  const auto find = [&](const std::string& token, const auto&... wanted_by) {
    const auto found = def.vocab.find(token);
    require(found != def.vocab.end(), def.path, ": ", wanted_by..., " \"", token,
            "\", which the vocabulary lacks");
    return found->second;
  };
  for (int byte = 0; byte < 256; ++byte)
    id_of_byte[byte] = find(byte_symbol(byte), "byte-level BPE needs the token");
  for (const auto& [left, right] : def.merges) {
    const auto rank = int32_t(merges.size());
    const auto token = [&](const std::string& name) {
      return find(name, "merge ", rank, " names the token");
    };
    merges.push_back({token(left), token(right), token(left + right)});
    rank_of_pair[pair_key(merges[rank].left, merges[rank].right)] = rank;
  }
  for (const AddedToken& token : def.added) {
    const auto found = def.vocab.find(token.content);
    if (found == def.vocab.end() || found->second != token.id)
      place(token.content, token.id, token.content);
    special[token.id] = token.special;
    added[uint8_t(token.content[0])].push_back(token);
  }
  for (auto& tokens : added) {
    std::stable_sort(tokens.begin(), tokens.end(), [](const AddedToken& a, const AddedToken& b) {
      return a.content.size() > b.content.size();
    });
  }

  int error = 0;
  PCRE2_SIZE offset = 0;
  pattern.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(def.pattern.data()), def.pattern.size(),
                              PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &error, &offset,
                              nullptr));
  if (!pattern) {
    std::array<PCRE2_UCHAR, 256> message{};
    pcre2_get_error_message(error, message.data(), message.size());
    fail(def.path, ": the pre-tokenizer's regex does not compile: ",
         reinterpret_cast<const char*>(message.data()), " at offset ", offset);
  }
  pcre2_jit_compile(pattern.get(),
                    PCRE2_JIT_COMPLETE);  // where there is no JIT, matching still works
}

const AddedToken* Tokenizer::Impl::added_token_at(std::string_view text) const {
  for (const AddedToken& token : added[uint8_t(text[0])])
    if (text.starts_with(token.content)) return &token;
  return nullptr;
}

void Tokenizer::Impl::Encoder::push_pair(int32_t left) {
  const int32_t right = symbols[left].next;
  if (right < 0) return;
  const auto found = impl.rank_of_pair.find(pair_key(symbols[left].id, symbols[right].id));
  if (found == impl.rank_of_pair.end()) return;
  heap.push_back(uint64_t(found->second) << 32 | uint32_t(left));
  std::push_heap(heap.begin(), heap.end(), std::greater{});
}

// Merges the pair of lowest rank, the leftmost first, until none is left. The heap keeps a run of n
// bytes at O(n log n).
void Tokenizer::Impl::Encoder::add_piece(std::string_view piece) {
  const auto n = int32_t(piece.size());
  symbols.clear();
  for (int32_t i = 0; i < n; ++i)
    symbols.push_back({impl.id_of_byte[uint8_t(piece[i])], i - 1, i + 1 < n ? i + 1 : -1});
  for (int32_t i = 0; i < n; ++i) push_pair(i);
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), std::greater{});
    const Merge& merge = impl.merges[heap.back() >> 32];
    const auto at = int32_t(heap.back() & 0xffffffff);
    heap.pop_back();
    Symbol& left = symbols[at];
    if (left.id != merge.left || left.next < 0 || symbols[left.next].id != merge.right)
      continue;  // one of the two has been merged since
    Symbol& right = symbols[left.next];
    left.id = merge.merged;
    left.next = right.next;
    right.id = -1;
    if (left.next >= 0) symbols[left.next].previous = at;
    if (left.previous >= 0) push_pair(left.previous);
    push_pair(at);
  }
  for (int32_t i = 0; i >= 0; i = symbols[i].next) ids.push_back(symbols[i].id);
}

void Tokenizer::Impl::Encoder::add_fragment(std::string_view raw) {
  const std::string normalised = impl.nfc ? to_nfc(raw) : std::string();
  const std::string_view text = impl.nfc ? normalised : raw;
  for (size_t done = 0; done < text.size();) {
    // A sane regex backtracks over a run a few times; PCRE2's own limit is for one match, and would
    // let a hostile one spend minutes on a page.
    constexpr size_t kSteps = 10'000, kStepsAByte = 16;
    pcre2_set_match_limit(
        limits.get(),
        uint32_t(std::min<size_t>(kSteps + kStepsAByte * (text.size() - done), UINT32_MAX)));
    // NO_UTF_CHECK: the text is valid, and a check at every match would make this quadratic.
    const int found =
        pcre2_match(impl.pattern.get(), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(),
                    done, PCRE2_NO_UTF_CHECK | PCRE2_NOTEMPTY, match.get(), limits.get());
    if (found == PCRE2_ERROR_NOMATCH) {
      add_piece(text.substr(done));
      return;
    }
    require(found >= 0, "the tokenizer's regex gives up on the text (PCRE2 error ", found, ")");
    const PCRE2_SIZE* range = pcre2_get_ovector_pointer(match.get());
    // PCRE2 refuses \K in lookarounds, but not in a group that a lookaround calls.
    require(done <= range[0] && range[0] < range[1],
            "the tokenizer's regex moves a match out of place; take \\K out of it");
    if (range[0] > done) add_piece(text.substr(done, range[0] - done));
    add_piece(text.substr(range[0], range[1] - range[0]));
    done = range[1];
  }
}

Tokenizer Tokenizer::load(const std::string& path) {
  try {
    return Tokenizer(std::make_shared<const Impl>(read_definition(path)));
  } catch (const json::exception& error) {
    fail(path, ": not a usable tokenizer: ", error.what());
  } catch (const fs::filesystem_error& error) {
    fail(path, ": ", error.code().message());
  }
}

std::vector<int32_t> Tokenizer::encode(std::string_view raw) const {
  require(raw.size() <= kMaxTextBytes, "a text of ", raw.size(), " bytes is too long; at most ",
          kMaxTextBytes, " can be tokenised at once");
  const std::string valid = valid_utf8(raw);
  const std::string_view text = valid;
  Impl::Encoder encoder{.impl = *impl_};
  size_t begin = 0;
  for (size_t i = 0; i < text.size();) {
    const AddedToken* token = impl_->added_token_at(text.substr(i));
    if (!token) {
      ++i;
      continue;
    }
    encoder.add_fragment(text.substr(begin, i - begin));
    encoder.ids.push_back(token->id);
    begin = i += token->content.size();
  }
  encoder.add_fragment(text.substr(begin));
  return std::move(encoder.ids);
}

std::string Tokenizer::decode(const std::vector<int32_t>& ids, bool skip_special) const {
  std::string bytes;
  for (const int32_t id : ids) {
    if (id < 0 || id >= vocab_size() || (skip_special && impl_->special[id])) continue;
    bytes += impl_->bytes[id];
  }
  return valid_utf8(bytes);
}

int Tokenizer::vocab_size() const { return int(impl_->bytes.size()); }

}  // namespace hypic
