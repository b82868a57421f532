#include <CLI/CLI.hpp>
#include <fstream>
#include <iostream>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>

#include "core/check.h"
#include "core/sha256.h"
#include "harness/cli/commands.h"
#include "models/text_segments.h"
#include "models/tokenizer.h"

namespace hypic {
namespace {

constexpr size_t kMaxBytes = size_t{256} << 20;  // what Tokenizer::encode takes

std::string read_text(const std::string& path) {
  std::ifstream file;
  if (path != "-") file.open(path, std::ios::binary);
  std::istream& in = path == "-" ? std::cin : file;
  require(in.good(), path, ": cannot be opened; check that it exists and is readable");
  std::string text;
  std::vector<char> buffer(size_t{1} << 20);
  while (in.read(buffer.data(), std::streamsize(buffer.size())), in.gcount() > 0) {
    text.append(buffer.data(), size_t(in.gcount()));
    require(text.size() <= kMaxBytes, path, ": is over ", kMaxBytes >> 20, " MiB");
  }
  require(!in.bad(), path, ": cannot be read; is it a folder?");
  return text;
}

// HYPIC's cache key: the first half of SHA-256 over the ids as little-endian int32.
std::string key_of(const std::vector<int32_t>& ids) {
  return hex(Sha256().add(ids.data(), ids.size() * sizeof(int32_t)).digest()).substr(0, 32);
}

}  // namespace

void add_tokenize(CLI::App& app, int&) {
  CLI::App* command = app.add_subcommand("tokenize", "Print the token ids of a text");
  struct Options {
    std::string tokenizer, path;
    bool json = false, segments = false;
  };
  const auto options = std::make_shared<Options>();
  command->add_option("--tokenizer", options->tokenizer, "tokenizer.json, or a folder with one")
      ->required();
  command->add_flag("--json", options->json, "As JSON: ids, their number and HYPIC's cache key");
  command->add_flag("--segments", options->segments,
                    "Each segment alone, on a line of its own: the parts between <<PIC_SEP>>, "
                    "empty ones dropped");
  command->add_option("file", options->path, "A text in UTF-8; - is standard input")->required();
  command->callback([options] {
    const Tokenizer tokenizer = Tokenizer::load(options->tokenizer);
    const std::string text = read_text(options->path);
    const std::vector<std::string> pieces =
        options->segments ? split_segments(text) : std::vector<std::string>{text};
    nlohmann::ordered_json all = nlohmann::ordered_json::array();
    size_t total = 0;
    for (const std::string& piece : pieces) {
      const std::vector<int32_t> ids = tokenizer.encode(piece);
      total += ids.size();
      if (options->json) {
        all.push_back({{"tokens", ids.size()}, {"key", key_of(ids)}, {"ids", ids}});
        continue;
      }
      for (size_t i = 0; i < ids.size(); ++i) std::cout << (i ? " " : "") << ids[i];
      std::cout << "\n";
    }
    if (!options->json) return;
    std::cout << (options->segments
                      ? nlohmann::ordered_json{{"tokens", total}, {"segments", std::move(all)}}
                      : std::move(all[0]))
              << "\n";
  });
}

}  // namespace hypic
