// LongBench rows, their segments and their prompts.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace hypic {

// One LongBench row; `question` is the row's "input".
struct Item {
  std::string id, dataset, context, question;
  std::vector<std::string> answers;
};

// The rows of a LongBench JSONL file (fields _id, dataset, input, context, answers; others are
// ignored, blank lines skipped). Throws Error with path:line for a row that is malformed or over 64
// MiB, and with the path for a file that cannot be read or holds no row.
std::vector<Item> load_longbench(const std::string& path);

// `context` cut before every header "Passage N:\n" (N decimal digits); a header stays with its
// passage, text before the first one is a segment of its own. The segments concatenate to
// `context`. After EPIC.
std::vector<std::string> segment_passages(std::string_view context);

// A prompt in the segments it is cached by; they concatenate to the text of the prompt. The last
// one holds the question and is never cached.
struct Prompt {
  std::vector<std::string> segments;
};

// The prompt of LongBench's config/dataset2prompt.json for `item.dataset`: the text before the
// context, the context's segments, the text after it with the question. Known: hotpotqa, 2wikimqa,
// musique. Throws Error for any other dataset.
Prompt longbench_prompt(const Item& item);

// The same with HotpotQA's template, whatever `item.dataset` says.
Prompt hotpotqa_prompt(const Item& item);

}  // namespace hypic
