#include "harness/measure/prompts.h"

#include <algorithm>
#include <filesystem>

#include "core/check.h"
#include "datasets/dataset.h"
#include "harness/assets.h"
#include "harness/model_choice.h"

namespace hypic {

std::string own_text() { return asset("datasets/text/passages.jsonl"); }

std::vector<TokenPrompt> load_prompts(const std::string& data, const Tokenizer& tokenizer,
                                      const PromptLimits& limits) {
  const std::vector<Item> items = load_dataset(data.empty() ? own_text() : data);
  std::vector<TokenPrompt> prompts;
  for (const Item& item : items) {
    if (static_cast<int64_t>(prompts.size()) == limits.rows) break;
    const Prompt prompt = longbench_prompt(item);
    TokenPrompt& out = prompts.emplace_back();
    out.id = item.id;
    const size_t last = prompt.segments.size() - 1;
    for (size_t i = 0; i <= last; ++i) {
      const bool passage = 0 < i && i < last;
      if (passage && static_cast<int64_t>(i) > limits.passages) continue;
      auto& tokens = out.segments.emplace_back(tokenizer.encode(prompt.segments[i]));
      if (passage) tokens.resize(std::min<size_t>(tokens.size(), limits.tokens));
    }
  }
  return prompts;
}

Tokenizer tokenizer_for(const std::string& model) {
  return Tokenizer::load(model.starts_with("random:") ? asset("datasets/tokenizer") : model);
}

bool has_tokenizer(const std::string& model) {
  if (model.starts_with("random:")) return true;
  std::error_code error;
  return std::filesystem::exists(model + "/tokenizer.json", error) ||
         std::filesystem::exists(model + "/merges.txt", error);
}

std::vector<TokenPrompt> random_prompts(int32_t vocabulary, const PromptLimits& limits) {
  constexpr int64_t kInstruction = 12, kQuestion = 9;
  std::vector<TokenPrompt> prompts;
  uint64_t seed = 0;
  for (int64_t row = 0; row < limits.rows; ++row) {
    TokenPrompt& prompt = prompts.emplace_back();
    prompt.id = str("random tokens ", row);
    prompt.segments.push_back(random_tokens(kInstruction, vocabulary, ++seed));
    for (int64_t i = 0; i < limits.passages; ++i)
      prompt.segments.push_back(random_tokens(limits.tokens, vocabulary, ++seed));
    prompt.segments.push_back(random_tokens(kQuestion, vocabulary, ++seed));
  }
  return prompts;
}

}  // namespace hypic
