#include "datasets/dataset.h"

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

#include "core/check.h"

namespace hypic {
namespace {

constexpr size_t kMaxLineBytes = size_t{64} << 20;

// How a dataset's context is cut and what LongBench puts around it.
struct Format {
  std::string_view dataset;
  std::vector<std::string> (*segment)(std::string_view context);
  std::string_view before_context, before_question, after_question;
};

constexpr std::string_view kPassagesBefore =
    "Answer the question based on the given passages. Only give me the answer and do not output "
    "any "
    "other words.\n\nThe following are given passages.\n";
constexpr std::string_view kPassagesAfter =
    "\n\nAnswer the question based on the given passages. Only give me the answer and do not "
    "output "
    "any other words.\n\nQuestion: ";

constexpr Format kFormats[] = {
    {"hotpotqa", segment_passages, kPassagesBefore, kPassagesAfter, "\nAnswer:"},
    {"2wikimqa", segment_passages, kPassagesBefore, kPassagesAfter, "\nAnswer:"},
    {"musique", segment_passages, kPassagesBefore, kPassagesAfter, "\nAnswer:"},
};

Prompt make_prompt(std::string_view dataset, const Item& item) {
  const auto format = std::find_if(std::begin(kFormats), std::end(kFormats),
                                   [&](const Format& f) { return f.dataset == dataset; });
  require(format != std::end(kFormats), "no prompt is known for dataset \"", dataset,
          "\"; known are hotpotqa, 2wikimqa and musique");
  Prompt prompt{format->segment(item.context)};
  prompt.segments.insert(prompt.segments.begin(), std::string(format->before_context));
  prompt.segments.push_back(std::string(format->before_question) + item.question +
                            std::string(format->after_question));
  return prompt;
}

// The length of a header "Passage N:\n" at the start of `text`, 0 if there is none.
size_t header_length(std::string_view text) {
  constexpr std::string_view kWord = "Passage ";
  if (!text.starts_with(kWord)) return 0;
  const size_t colon = std::min(text.find_first_not_of("0123456789", kWord.size()), text.size());
  return colon > kWord.size() && text.substr(colon, 2) == ":\n" ? colon + 2 : 0;
}

// The next line, without its end, of at most kMaxLineBytes + 1 bytes; false at the end of the file.
bool read_line(std::istream& file, std::string& line) {
  line.clear();
  int c;
  while ((c = file.get()) != EOF && c != '\n' && line.size() <= kMaxLineBytes) line += char(c);
  return c != EOF || !line.empty();
}

}  // namespace

std::vector<Item> load_longbench(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  require(file.good(), path, ": cannot be opened; check that it exists and is readable");
  std::vector<Item> items;
  int line_number = 0;
  for (std::string line; read_line(file, line);) {
    ++line_number;
    require(line.size() <= kMaxLineBytes, path, ":", line_number, ": the line is over ",
            kMaxLineBytes >> 20, " MiB");
    if (line.find_first_not_of(" \t\r") == line.npos) continue;
    try {
      const auto row = nlohmann::json::parse(line);
      items.push_back({row.at("_id").get<std::string>(), row.at("dataset").get<std::string>(),
                       row.at("context").get<std::string>(), row.at("input").get<std::string>(),
                       row.at("answers").get<std::vector<std::string>>()});
    } catch (const nlohmann::json::exception& error) {
      fail(path, ":", line_number, ": not a LongBench row: ", error.what());
    }
  }
  require(!file.bad(), path, ": cannot be read; is it a folder?");
  require(!items.empty(), path, ": holds no row");
  return items;
}

std::vector<std::string> segment_passages(std::string_view context) {
  std::vector<std::string> segments;
  size_t begin = 0;
  for (size_t i = 0; (i = context.find("Passage ", i)) != context.npos;) {
    const size_t length = header_length(context.substr(i));
    if (length > 0 && i > begin) segments.emplace_back(context.substr(begin, i - begin));
    if (length > 0) begin = i;
    i += std::max<size_t>(length, 1);
  }
  if (begin < context.size()) segments.emplace_back(context.substr(begin));
  return segments;
}

Prompt longbench_prompt(const Item& item) { return make_prompt(item.dataset, item); }
Prompt hotpotqa_prompt(const Item& item) { return make_prompt("hotpotqa", item); }

}  // namespace hypic
