// Prompts as segments of token ids, from rows of a dataset, cut to a size that a case asks for.
#pragma once

#include <string>
#include <vector>

#include "models/tokenizer.h"

namespace hypic {

struct PromptLimits {
  int64_t rows = 1;
  int64_t passages = 8;  // of each row, the first ones
  int64_t tokens = 128;  // of each passage, the first ones
};

struct TokenPrompt {
  std::string id;
  std::vector<std::vector<int32_t>> segments;  // instruction, passages, question
};

// From `data`, a file that load_dataset reads; where it is empty, from the project's own text.
std::vector<TokenPrompt> load_prompts(const std::string& data, const Tokenizer& tokenizer,
                                      const PromptLimits& limits);

// The tokenizer in a model's folder; for random:… the project's own.
Tokenizer tokenizer_for(const std::string& model);

// Whether a model comes with a tokenizer.
bool has_tokenizer(const std::string& model);

// Prompts of random token ids, of the largest size that the limits allow.
std::vector<TokenPrompt> random_prompts(int32_t vocabulary, const PromptLimits& limits);

// What load_prompts reads where no data is named.
std::string own_text();

}  // namespace hypic
