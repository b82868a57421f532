#include "models/tokenizer.h"

#include <gtest/gtest.h>
#include <openssl/evp.h>
#include <rapidcheck/gtest.h>
#include <unicode/normalizer2.h>

#include <array>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <thread>

#include "core/check.h"
#include "core/temporary_folder.h"
#include "models/text_segments.h"

namespace hypic {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;
using Ids = std::vector<int32_t>;

const char kOwn[] = "datasets/tokenizer";

// The folder shared/data, which a clone need not have; empty if absent.
std::string shared_data() {
  const char* shared = std::getenv("HYPIC_SHARED");
  const auto path = fs::path(shared ? shared : "../shared") / "data";
  return fs::is_directory(path) ? path.string() : "";
}

std::string read(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void write(const fs::path& path, const std::string& bytes) {
  fs::create_directories(path.parent_path());
  std::ofstream(path, std::ios::binary) << bytes;
}

std::vector<json> read_jsonl(const fs::path& path) {
  std::vector<json> rows;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) rows.push_back(json::parse(line));
  return rows;
}

// The first 16 bytes, in hex, of SHA-256 over the ids as int32 (little-endian here and in the
// file).
std::string hash(const Ids& ids) {
  std::array<unsigned char, 32> digest;
  EVP_Digest(ids.data(), ids.size() * sizeof(int32_t), digest.data(), nullptr, EVP_sha256(),
             nullptr);
  std::string hex;
  for (int i = 0; i < 16; ++i)
    for (const int nibble : {digest[i] >> 4, digest[i] & 15}) hex += "0123456789abcdef"[nibble];
  return hex;
}

std::string join(const std::vector<std::string>& parts) {
  std::string text;
  for (const std::string& part : parts) text += part;
  return text;
}

// `text` cut before every line "Passage…:".
std::vector<std::string> cut_at_passages(const std::string& text) {
  std::vector<std::string> parts;
  size_t begin = 0;
  for (size_t at = 0; (at = text.find("\nPassage", at)) != text.npos;) {
    ++at;
    if (text[text.find_first_of(":\n", at)] != ':') continue;
    parts.push_back(text.substr(begin, at - begin));
    begin = at;
  }
  parts.push_back(text.substr(begin));
  return parts;
}

bool is_nfc(const std::string& text) {
  UErrorCode status = U_ZERO_ERROR;
  return icu::Normalizer2::getNFCInstance(status)->isNormalizedUTF8(text, status);
}

const Tokenizer& own() {
  static const Tokenizer tokenizer = Tokenizer::load(kOwn);
  return tokenizer;
}

// ---- Equality with independent implementations ----

TEST(Tokenizer, EqualsHuggingFaceOnOurOwnFiles) {
  int texts = 0, files = 0;
  for (const json& row : read_jsonl(fs::path(kOwn) / "golden.jsonl")) {
    if (row.contains("file")) {
      const Ids ids = own().encode(read(row["file"].get<std::string>()));
      EXPECT_EQ(ids.size(), row["n"].get<size_t>()) << row["file"];
      EXPECT_EQ(hash(ids), row["hash"]) << row["file"];
      ++files;
    } else {
      const Ids ids = own().encode(row["text"].get<std::string>());
      EXPECT_EQ(ids, row["ids"].get<Ids>()) << row["text"];
      EXPECT_EQ(own().decode(ids), row["decoded"]) << row["text"];
      ++texts;
    }
  }
  EXPECT_GE(texts, 150);
  EXPECT_GE(files, 12);
}

// Ids, whole documents and their segments as Hugging Face's library gave them for the real
// vocabularies.
void expect_shared_golden(const std::string& name) {
  const fs::path data = shared_data();
  if (data.empty())
    GTEST_SKIP() << "no ../shared/data; set HYPIC_SHARED to the folder that holds data";
  const Tokenizer tokenizer = Tokenizer::load((data / "tokenizers" / name).string());

  std::map<std::string, std::string> contexts;  // by dataset and id
  for (const char* folder : {"longbench", "extra"}) {
    for (const auto& file : fs::directory_iterator(data / folder)) {
      for (const json& row : read_jsonl(file.path()))
        if (row.contains("context"))
          contexts[row["dataset"].get<std::string>() + row["_id"].get<std::string>()] =
              row["context"];
    }
  }
  int edges = 0, documents = 0, segments = 0;
  for (const json& row : read_jsonl(data / "golden" / ("tokens_" + name + ".jsonl"))) {
    if (row["kind"] == "edge") {
      const Ids ids = tokenizer.encode(row["text"].get<std::string>());
      EXPECT_EQ(ids, row["ids"].get<Ids>()) << row["text"];
      EXPECT_EQ(tokenizer.decode(ids), row["decoded"]) << row["text"];
      ++edges;
      continue;
    }
    const auto found =
        contexts.find(row["dataset"].get<std::string>() + row["id"].get<std::string>());
    if (found == contexts.end()) continue;  // the folder holds a part of the rows
    const Ids ids = tokenizer.encode(found->second);
    EXPECT_EQ(ids.size(), row["n"].get<size_t>()) << row["id"];
    EXPECT_EQ(hash(ids), row["hash"]) << row["id"];
    ++documents;
    if (!row.contains("segments")) continue;
    const auto parts = cut_at_passages(found->second);
    EXPECT_EQ(join(parts), found->second);
    ASSERT_EQ(parts.size(), row["segments"].size()) << row["id"];
    for (size_t i = 0; i < parts.size(); ++i, ++segments) {
      const Ids part = tokenizer.encode(parts[i]);
      EXPECT_EQ(part.size(), row["segments"][i][0].get<size_t>()) << row["id"] << " segment " << i;
      EXPECT_EQ(hash(part), row["segments"][i][1]) << row["id"] << " segment " << i;
    }
  }
  EXPECT_GE(edges, 1);
  EXPECT_GE(documents, 3);
  std::cout << name << ": " << edges << " strings, " << documents << " documents, " << segments
            << " segments equal\n";
}

TEST(Tokenizer, EqualsHuggingFaceOnQwen3) { expect_shared_golden("qwen3"); }
TEST(Tokenizer, EqualsHuggingFaceOnLingLite) { expect_shared_golden("ling-lite-1.5"); }

// ---- Properties ----

// Pieces that meet the regex, NFC and the added tokens at their corners.
rc::Gen<std::string> any_text() {
  return rc::gen::map(
      rc::gen::container<std::vector<std::string>>(rc::gen::oneOf(
          rc::gen::element<std::string>("a", "the ", "'s", "'LL", " ", "\n", "\r\n", "\t", "1", "²",
                                        "!", "é", "e\u0301", "\u0323", "가", "\u1100", "中", "🙂",
                                        "\u00a0", "\u180e", "<|im_end|>", "<|im_", "<<PIC_SEP>>",
                                        std::string(1, '\0')),
          rc::gen::map(rc::gen::inRange(0x20, 0x2fff),
                       [](int c) {
                         std::string text;
                         if (c < 0x80) return std::string(1, char(c));
                         if (c < 0x800)
                           return std::string{char(0xc0 | c >> 6), char(0x80 | (c & 63))};
                         return std::string{char(0xe0 | c >> 12), char(0x80 | (c >> 6 & 63)),
                                            char(0x80 | (c & 63))};
                       }))),
      join);
}

RC_GTEST_PROP(Tokenizer, DecodesToWhatItEncoded, ()) {
  const std::string text = *any_text();
  RC_PRE(is_nfc(text));
  RC_ASSERT(own().decode(own().encode(text)) == text);
}

RC_GTEST_PROP(Tokenizer, EncodesSegmentsAsSoManyTexts, ()) {
  std::string text = *any_text();
  for (const std::string& part : split_segments(text)) {
    RC_ASSERT(!part.empty());
    RC_ASSERT(part.find(kSegmentSeparator) == part.npos);
    const Ids ids = own().encode(part);
    RC_ASSERT(own().encode(own().decode(ids)) == ids);
  }
}

RC_GTEST_PROP(Tokenizer, SurvivesArbitraryBytes, (const std::string& bytes)) {
  const Ids ids = own().encode(bytes);
  const std::string text = own().decode(ids);
  RC_ASSERT(own().decode(own().encode(text)) == text);
  for (const int32_t id : ids) RC_ASSERT(id >= 0 && id < own().vocab_size());
}

RC_GTEST_PROP(Tokenizer, DecodesAnyIds, ()) {
  const std::string text = own().decode(*rc::gen::container<Ids>(rc::gen::inRange(-9, 2060)));
  RC_PRE(is_nfc(text));
  RC_ASSERT(own().decode(own().encode(text)) == text);
}

// ---- Corners ----

TEST(Tokenizer, ReplacesIllFormedUtf8) {
  const auto round_trip = [](std::string_view bytes) { return own().decode(own().encode(bytes)); };
  EXPECT_EQ(round_trip("a\xff"
                       "b"),
            "a\uFFFDb");
  EXPECT_EQ(round_trip("\xe4\xb8"), "\uFFFD");                  // cut short: one
  EXPECT_EQ(round_trip("\xc0\xaf"), "\uFFFD\uFFFD");            // overlong
  EXPECT_EQ(round_trip("\xed\xa0\x80"), "\uFFFD\uFFFD\uFFFD");  // a surrogate
  EXPECT_EQ(round_trip("\xf4\x90\x80\x80").size(), 4 * 3);      // beyond U+10FFFF
  Ids ids = own().encode("日");
  ASSERT_GT(ids.size(), 1);
  ids.pop_back();
  EXPECT_EQ(own().decode(ids), "\uFFFD");
}

TEST(Tokenizer, KeepsDropsAndIgnoresTokens) {
  EXPECT_EQ(own().vocab_size(), 2048);
  const Ids ids = own().encode("<|im_start|>Osk<|im_end|>");
  EXPECT_EQ(ids.front(), 2046);
  EXPECT_EQ(ids.back(), 2047);
  EXPECT_EQ(own().decode(ids), "<|im_start|>Osk<|im_end|>");
  EXPECT_EQ(own().decode(ids, true), "Osk");
  EXPECT_EQ(own().decode({-1, ids[1], 2048, INT32_MAX, INT32_MIN}), own().decode({ids[1]}));
  EXPECT_EQ(own().encode(""), Ids{});
}

// A million characters without a break must not take quadratic time; each of these takes < 1 s.
TEST(Tokenizer, LongRunsAreNotQuadratic) {
  const auto start = std::chrono::steady_clock::now();
  for (const char* piece : {"a", " ", "\n", "é", "!", "\u0301\u0323", " \n"}) {
    std::string text;
    while (text.size() < 1'000'000) text += piece;
    const size_t tokens = own().encode(text + "x").size();
    EXPECT_GT(tokens, 1000) << piece;
  }
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(60));
}

TEST(Tokenizer, EncodesFromSeveralThreads) {
  const std::string text = read("datasets/text/essays.txt");
  const Ids expected = own().encode(text);
  std::array<Ids, 4> got;
  std::vector<std::thread> threads;
  for (Ids& ids : got) threads.emplace_back([&] { ids = own().encode(text); });
  for (std::thread& thread : threads) thread.join();
  for (const Ids& ids : got) EXPECT_EQ(ids, expected);
}

TEST(SplitSegments, KeepsTextAndDropsEmptyParts) {
  using Parts = std::vector<std::string>;
  EXPECT_EQ(split_segments(""), Parts{});
  EXPECT_EQ(split_segments("<<PIC_SEP>><<PIC_SEP>>"), Parts{});
  EXPECT_EQ(split_segments(" a \n<<PIC_SEP>>b<<PIC_SEP>> <<PIC_SEP"),
            (Parts{" a \n", "b", " <<PIC_SEP"}));
  EXPECT_EQ(split_segments("a||b", "|"), (Parts{"a", "b"}));
  EXPECT_THROW(split_segments("a", ""), Error);
}

// ---- Files ----

class TokenizerFile : public testing::Test {
 protected:
  void SetUp() override {
    good_ = json::parse(read(fs::path(kOwn) / "tokenizer.json"));
  }

  Tokenizer load(const json& root) {
    write(folder_ / "tokenizer.json", root.dump());
    return Tokenizer::load(folder_.string());
  }

  // Loading fails with one line that holds the path and `reason`.
  void expect_refused(const json& root, const std::string& reason) {
    try {
      load(root);
      ADD_FAILURE() << "accepted; expected: " << reason;
    } catch (const Error& error) {
      const std::string message = error.what();
      EXPECT_NE(message.find(reason), message.npos) << message;
      EXPECT_NE(message.find(folder_.string()), message.npos) << message;
      EXPECT_EQ(message.find('\n'), message.npos) << message;
    }
  }
  // The same for the good file with the value at `pointer` replaced.
  void expect_refused(const std::string& pointer, const json& value, const std::string& reason) {
    SCOPED_TRACE(pointer + " = " + value.dump());
    json root = good_;
    root[json::json_pointer(pointer)] = value;
    expect_refused(root, reason);
  }

  const TemporaryFolder made_;
  const fs::path folder_ = made_.path();
  json good_;
};

TEST_F(TokenizerFile, MergesMayBePairsAndTheFileMayBeNamed) {
  for (json& merge : good_["model"]["merges"]) {
    const auto text = merge.get<std::string>();
    merge = json::array({text.substr(0, text.find(' ')), text.substr(text.find(' ') + 1)});
  }
  const std::string text = read("datasets/text/gazette.txt");
  EXPECT_EQ(load(good_).encode(text), own().encode(text));
  EXPECT_EQ(Tokenizer::load((folder_ / "tokenizer.json").string()).encode(text),
            own().encode(text));
}

TEST_F(TokenizerFile, MergesTxtGivesTheSameIds) {
  std::string merges;
  for (const json& merge : good_["model"]["merges"]) merges += merge.get<std::string>() + "\n";
  json meta = good_;
  meta.erase("model");
  meta["base_vocab"] = 2045;
  write(folder_ / "merges.txt", merges);
  write(folder_ / "meta.json", meta.dump());
  const std::string text = read("datasets/text/languages.txt");
  EXPECT_EQ(Tokenizer::load(folder_.string()).encode(text), own().encode(text));

  const auto expect_merges_refused = [&](const std::string& bytes, const std::string& reason) {
    write(folder_ / "merges.txt", bytes);
    try {
      Tokenizer::load(folder_.string());
      ADD_FAILURE() << "accepted; expected: " << reason;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(reason), std::string::npos) << error.what();
    }
  };
  expect_merges_refused(merges.substr(0, merges.size() / 2), "one of the files is cut");
  expect_merges_refused("a b\nab\n", "merges.txt:2: not two tokens");
  expect_merges_refused("a b\na b\n", "merges.txt:2: not two tokens");
  fs::remove(folder_ / "merges.txt");
  EXPECT_THROW(Tokenizer::load(folder_.string()), Error);
  fs::remove(folder_ / "meta.json");
  EXPECT_THROW(Tokenizer::load(folder_.string()), Error);
  EXPECT_THROW(Tokenizer::load((folder_ / "absent").string()), Error);
}

TEST_F(TokenizerFile, AddedTokensAreTakenLongestFirst) {
  for (const auto& [content, id] : {std::pair{"<|im", 2048}, std::pair{"<|im_end|><", 2049}})
    good_["added_tokens"].push_back({{"content", content}, {"id", id}, {"special", false}});
  const Tokenizer tokenizer = load(good_);
  Ids expected{2048, 2049};
  for (const int32_t id : own().encode("|im_end|>")) expected.push_back(id);
  EXPECT_EQ(tokenizer.encode("<|im<|im_end|><|im_end|>"), expected);
  EXPECT_EQ(tokenizer.vocab_size(), 2050);
  EXPECT_EQ(tokenizer.decode({2047, 2048, 2049}, true), "<|im<|im_end|><");
}

TEST_F(TokenizerFile, RefusesOtherKinds) {
  expect_refused("/model/type", "Unigram", "model of type \"Unigram\" is not supported");
  expect_refused("/model/type", "WordPiece", "model of type \"WordPiece\" is not supported");
  expect_refused("/model/byte_fallback", true, "byte_fallback");
  expect_refused("/model/ignore_merges", true, "ignore_merges");
  expect_refused("/model/dropout", 0.1, "dropout");
  expect_refused("/model/end_of_word_suffix", "</w>", "end_of_word_suffix");
  expect_refused("/normalizer/type", "NFKC", "normalizer \"NFKC\" is not supported");
  expect_refused("/normalizer", {{"type", "Sequence"}, {"normalizers", {{{"type", "Lowercase"}}}}},
                 "normalizer \"Lowercase\" is not supported");
  expect_refused("/pre_tokenizer", nullptr, "pre_tokenizer is not supported");
  expect_refused("/pre_tokenizer/pretokenizers/0/behavior", "Removed",
                 "settings are not supported");
  expect_refused("/pre_tokenizer/pretokenizers/1/use_regex", true, "settings are not supported");
  expect_refused("/added_tokens/0/lstrip", true, "lstrip");
  expect_refused("/added_tokens/0/normalized", true, "normalized");
}

TEST_F(TokenizerFile, RefusesMalformedOnes) {
  expect_refused(json::array(), "not a usable tokenizer");
  expect_refused(json::object(), "key 'model' not found");
  expect_refused("/model", 7, "not a usable tokenizer");
  expect_refused("/model/vocab", "x", "the id of token");
  expect_refused("/model/vocab", json::object(), "byte-level BPE needs the token");
  expect_refused("/model/vocab/a", -1, "the id of token \"a\" is -1");
  expect_refused("/model/vocab/a", 1e300, "the id of token \"a\" is 1e+300");
  expect_refused("/model/vocab/a", uint64_t(1) << 40, "the id of token");
  expect_refused("/model/vocab/a", 1, "which another token has already");
  expect_refused("/model/merges/0", "ab", "merge 0 \"ab\" is not two tokens");
  expect_refused("/model/merges/0", json::array({"a"}), "merge 0 is not a pair");
  expect_refused("/model/merges/0", json::array({"a", 7}), "not a usable tokenizer");
  expect_refused("/model/merges/0", "a nothere", "merge 0 names the token");
  expect_refused("/added_tokens/0/id", 5, "which another token has already");
  expect_refused("/added_tokens/0/id", "5", "the id of token");
  expect_refused("/added_tokens/0/content", "", "empty");
  expect_refused("/added_tokens", 3, "not a usable tokenizer");
  expect_refused("/pre_tokenizer/pretokenizers/0/pattern/Regex", "(a", "regex does not compile");
  expect_refused("/pre_tokenizer/pretokenizers/0/pattern/Regex", "\\C", "regex does not compile");
  expect_refused("/pre_tokenizer/pretokenizers/0/pattern", json::object(), "not supported");
}

TEST_F(TokenizerFile, RefusesEveryTruncation) {
  const std::string bytes = read(fs::path(kOwn) / "tokenizer.json");
  for (size_t size = 0; size + 2 < bytes.size(); size += 997) {
    write(folder_ / "tokenizer.json", bytes.substr(0, size));
    EXPECT_THROW(Tokenizer::load(folder_.string()), Error) << size;
  }
}

TEST_F(TokenizerFile, SurvivesDeepNesting) {
  const std::string deep = std::string(200'000, '[') + std::string(200'000, ']');
  for (const char* name : {"/model/vocab/a", "/normalizer", "/model/type", "/added_tokens"}) {
    json root = good_;
    root[json::json_pointer(name)] = "DEEP";
    std::string bytes = root.dump();
    write(folder_ / "tokenizer.json", bytes.replace(bytes.find("\"DEEP\""), 6, deep));
    EXPECT_THROW(Tokenizer::load(folder_.string()), Error) << name;
  }
}

// A regex that backtracks for ever, or matches nothing, ends in an Error or in ids, soon.
TEST_F(TokenizerFile, BoundsHostileRegexes) {
  json& regex = good_["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"];
  regex = "(?:a+)+$";
  EXPECT_THROW(load(good_).encode(std::string(200, 'a') + "b"), Error);
  for (const char* pattern : {"(?=(?1))|(ab\\Kb)", "(?=(?1))a|(abb\\K)", "(?<=(?1))b|(\\Ka)"}) {
    regex = pattern;
    EXPECT_THROW(load(good_).encode("aabbb"), Error) << pattern;
  }
  regex = "(?=.*.*.*c)x|a";  // cheap enough each time, but at every character
  EXPECT_THROW(load(good_).encode(std::string(2000, 'a')), Error);
  for (const char* pattern : {"", "a*", "(?=a)", "\\b", "(?<=a)b\\K"}) {
    regex = pattern;
    const Tokenizer tokenizer = load(good_);
    EXPECT_EQ(tokenizer.decode(tokenizer.encode("xaab é")), "xaab é") << pattern;
  }
}

}  // namespace
}  // namespace hypic
