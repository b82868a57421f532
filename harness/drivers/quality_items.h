// What the quality driver asks: rows of a task or a dataset as prompts, and how answers are scored.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "datasets/loader.h"
#include "datasets/tasks.h"
#include "harness/measure/workload.h"
#include "models/spec.h"
#include "models/tokenizer.h"

namespace hypic::quality {

struct Cell {
  std::string task;     // one of datasets/tasks.h; empty: `dataset`
  TaskShape shape;      // of a task
  std::string dataset;  // one of datasets/dataset.h
  int64_t rows = 0;
  int64_t max_tokens = 0;  // of a dataset's prompt: of a longer one the middle is left out; 0: what the model takes
  int64_t new_tokens = 0;  // of an answer at most; 0: of a task what the right one takes and some, else LongBench's

  std::string label() const;  // "headlines/8x64", "hotpotqa"
  const std::string& kind() const { return task.empty() ? dataset : task; }
};

// {"task": "headlines", "segments": 8, "tokens": 64, "rows": 500} or {"dataset": "hotpotqa", "rows": 200, "max_tokens":
// …}, both with "new_tokens". Error, beginning with `where`.
Cell read_cell(const nlohmann::json& json, const std::string& where);

struct Item {
  CellPrompt prompt;         // its documents are segments, each tokenized alone; the question is the last
  std::vector<Tokens> bare;  // the same without documents
  std::vector<std::string> answers;
  int64_t new_tokens = 0;
};

// The first rows of a cell. `loaded`: rows of a dataset; none for a task, whose test rows of `seed` are made here.
// Error: a prompt without documents, or longer than the model's positions (a task). `progress` hears of each row.
std::vector<Item> items_of(const Cell& cell, const std::vector<hypic::Item>& loaded, const Tokenizer& tokenizer,
                           const ModelSpec& spec, uint64_t seed, const std::function<void(size_t)>& progress);

// Of an answer's text, in [0, 1]: of a task 1 for the right one but for white space around it, else LongBench's score.
double score(const Cell& cell, const Item& item, std::string_view output);

}  // namespace hypic::quality
