#include "datasets/dataset.h"

#include <algorithm>

#include "core/check.h"

namespace hypic {
namespace {

using Segments = std::vector<std::string>;

Segments by_passages(std::string_view context, const CountTokens&) {
  return segment_passages(context);
}
Segments by_shots(std::string_view context, const CountTokens&) { return segment_shots(context); }
Segments by_sentences(std::string_view context, const CountTokens& count) {
  return segment_sentences(context, count);
}

constexpr std::string_view kPassagesBefore =
    "Answer the question based on the given passages. Only give me the answer and do not output "
    "any other words.\n\nThe following are given passages.\n";
constexpr std::string_view kPassagesAfter =
    "\n\nAnswer the question based on the given passages. Only give me the answer and do not "
    "output any other words.\n\nQuestion: ";
constexpr std::string_view kShotsBefore =
    "Answer the question based on the given passage. Only give me the answer and do not output any "
    "other words. The following are some examples.\n\n";
constexpr std::string_view kNewsBefore =
    "You are given several news passages. Write a one-page summary of all news. \n\nNews:\n";
constexpr std::string_view kNewsAfter =
    "\n\nNow, write a one-page summary of all the news.\n\nSummary:";
constexpr std::string_view kReportBefore =
    "You are given a report by a government agency. Write a one-page summary of the "
    "report.\n\nReport:\n";
constexpr std::string_view kReportAfter =
    "\n\nNow, write a one-page summary of the report.\n\nSummary:";

constexpr auto kF1 = Metric::qa_f1, kRouge = Metric::rouge_l;

// clang-format off
constexpr DatasetTraits kDatasets[] = {
    // name, segment, before the context, before and after the question, new tokens, metric,
    // first line only, chat template
    {"hotpotqa", by_passages, kPassagesBefore, kPassagesAfter, "\nAnswer:", 32, kF1, false, true},
    {"2wikimqa", by_passages, kPassagesBefore, kPassagesAfter, "\nAnswer:", 32, kF1, false, true},
    {"musique", by_passages, kPassagesBefore, kPassagesAfter, "\nAnswer:", 32, kF1, false, true},
    {"triviaqa", by_shots, kShotsBefore, "\n\n", "", 32, kF1, true, false},
    {"multi_news", by_passages, kNewsBefore, kNewsAfter, "", 512, kRouge, false, true},
    {"gov_report", by_sentences, kReportBefore, kReportAfter, "", 512, kRouge, false, true},
};
// clang-format on

size_t common_prefix(std::string_view a, std::string_view b) {
  return std::mismatch(a.begin(), a.begin() + std::min(a.size(), b.size()), b.begin()).first -
         a.begin();
}

size_t common_suffix(std::string_view a, std::string_view b) {
  return std::mismatch(a.rbegin(), a.rbegin() + std::min(a.size(), b.size()), b.rbegin()).first -
         a.rbegin();
}

}  // namespace

const DatasetTraits& dataset_traits(std::string_view name) {
  const std::string_view base = name.ends_with("_e") ? name.substr(0, name.size() - 2) : name;
  std::string known;
  for (const DatasetTraits& traits : kDatasets) {
    if (traits.name == base) return traits;
    known += str(known.empty() ? "" : ", ", traits.name);
  }
  fail("unknown dataset \"", name, "\"; known are ", known);
}

Prompt longbench_prompt(const Item& item, const CountTokens& count) {
  const DatasetTraits& traits = dataset_traits(item.dataset);
  // Summaries have no question; what a row may hold as its input is no part of their prompts.
  const std::string question = traits.metric == Metric::rouge_l ? "" : item.question;
  Prompt prompt{traits.segment(item.context, count)};
  prompt.segments.insert(prompt.segments.begin(), std::string(traits.before_context));
  prompt.segments.push_back(str(traits.before_question, question, traits.after_question));
  return prompt;
}

Prompt truncate_middle(const Prompt& prompt, int64_t max_tokens, const TextCodec& codec) {
  require(max_tokens >= 2, "a prompt cannot be cut to ", max_tokens, " tokens; at least 2");
  std::string text;
  std::vector<size_t> cuts;  // where segments begin in `text`
  for (const std::string& segment : prompt.segments) {
    cuts.push_back(text.size());
    text += segment;
  }
  const std::vector<int32_t> ids = codec.encode(text);
  if (static_cast<int64_t>(ids.size()) <= max_tokens) return prompt;
  const int64_t half = max_tokens / 2;
  const std::string head = codec.decode({ids.begin(), ids.begin() + half});
  const std::string tail = codec.decode({ids.end() - half, ids.end()});

  const size_t head_same = common_prefix(head, text), tail_same = common_suffix(tail, text);
  Prompt out;
  const auto split = [&](std::string_view part, const std::vector<size_t>& at) {
    size_t begin = 0;
    for (const size_t end : at)
      if (end > begin) out.segments.emplace_back(part.substr(begin, end - begin)), begin = end;
    if (begin < part.size()) out.segments.emplace_back(part.substr(begin));
  };
  std::vector<size_t> in_head, in_tail;
  for (const size_t cut : cuts) {
    if (cut <= head_same) in_head.push_back(cut);
    if (text.size() - cut <= tail_same) in_tail.push_back(tail.size() - (text.size() - cut));
  }
  split(head, in_head);
  split(tail, in_tail);
  return out;
}

std::string_view scored_part(const DatasetTraits& traits, std::string_view prediction) {
  if (!traits.first_line_only) return prediction;
  prediction.remove_prefix(std::min(prediction.find_first_not_of('\n'), prediction.size()));
  return prediction.substr(0, prediction.find('\n'));
}

}  // namespace hypic
