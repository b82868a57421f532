// LongBench's protocol: what each dataset's rows become, from prompt to metric.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "datasets/loader.h"
#include "datasets/segment.h"

namespace hypic {

enum class Metric { qa_f1, rouge_l };

// How LongBench asks and scores a dataset.
struct DatasetTraits {
  std::string_view name;
  std::vector<std::string> (*segment)(std::string_view context, const CountTokens& count);
  // Around the context and the question: LongBench's config/dataset2prompt.json.
  std::string_view before_context, before_question, after_question;
  int max_new_tokens;
  Metric metric;
  bool first_line_only;  // what a prediction is scored by
  bool chat_template;    // whether chat models get the prompt in their template
};

// Known: hotpotqa, 2wikimqa, musique, triviaqa, multi_news, gov_report, and LongBench-E's names of
// them with _e. Throws Error for any other.
const DatasetTraits& dataset_traits(std::string_view name);

// A prompt in the segments it is cached by; they concatenate to the text of the prompt. The last
// one holds the question and is never cached.
struct Prompt {
  std::vector<std::string> segments;
};

// LongBench's prompt for `item.dataset`: the text before the context, the context's segments, the
// text after it with the question. `count` matters to gov_report only.
Prompt longbench_prompt(const Item& item, const CountTokens& count = count_words);

// A tokenizer, for truncate_middle.
struct TextCodec {
  std::function<std::vector<int32_t>(std::string_view)> encode;    // without special tokens around
  std::function<std::string(const std::vector<int32_t>&)> decode;  // leaves special tokens out
};

// LongBench's truncation: a prompt of more than `max_tokens` (at least 2) becomes the text of its
// first and its last max_tokens / 2 tokens, put together; encoded again, it may be a few tokens
// more or less. Cuts between segments stay where both texts agree up to them, and one is where they
// meet. Without a whole segment left in a half, that half is one segment.
Prompt truncate_middle(const Prompt& prompt, int64_t max_tokens, const TextCodec& codec);

// What LongBench scores of a prediction: for triviaqa the first line after leading line breaks.
std::string_view scored_part(const DatasetTraits& traits, std::string_view prediction);

}  // namespace hypic
