#include "harness/drivers/quality_items.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "core/check.h"
#include "datasets/dataset.h"
#include "datasets/score.h"
#include "harness/suite.h"

namespace hypic::quality {
namespace {

constexpr int64_t kMost = 1 << 20;
constexpr int64_t kAfterAnswer = 8;  // tokens that an answer to a task may be longer than the right one
// Of the model's positions, left free: encoded again, a prompt that was cut may be a few tokens longer.
constexpr int64_t kSlack = 64;

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kSpace = " \t\r\n";
  const size_t begin = text.find_first_not_of(kSpace);
  return begin == text.npos ? "" : text.substr(begin, text.find_last_not_of(kSpace) + 1 - begin);
}

std::vector<Tokens> encoded(const std::vector<std::string>& segments, const Tokenizer& tokenizer) {
  std::vector<Tokens> all;
  for (const std::string& segment : segments)
    if (Tokens tokens = tokenizer.encode(segment); !tokens.empty()) all.push_back(std::move(tokens));
  return all;
}

Item task_item(const Cell& cell, const Tokenizer& tokenizer, uint64_t seed, uint64_t index) {
  const CountTokens count = [&](std::string_view text) { return tokenizer.encode(text).size(); };
  const TaskRow row = task_row(task_named(cell.task), cell.shape, TaskSplit::test, seed, index, count);
  const TaskQuestion& question = row.questions.at(0);
  Item item;
  item.prompt.id = row.id;
  item.prompt.segments = encoded(row.documents, tokenizer);
  item.prompt.segments.push_back(tokenizer.encode(question.text));
  item.bare = {item.prompt.segments.back()};
  item.answers = {question.answer};
  item.new_tokens = static_cast<int64_t>(count(question.answer)) + kAfterAnswer;
  return item;
}

Item dataset_item(const Cell& cell, const hypic::Item& row, const Tokenizer& tokenizer, const ModelSpec& spec) {
  const TextCodec codec = {[&](std::string_view text) { return tokenizer.encode(text); },
                           [&](const Tokens& ids) { return tokenizer.decode(ids, true); }};
  const CountTokens count = [&](std::string_view text) { return tokenizer.encode(text).size(); };
  Item item;
  item.prompt.id = row.id;
  item.prompt.instruction = true;
  item.answers = row.answers;
  item.new_tokens = cell.new_tokens > 0 ? cell.new_tokens : dataset_traits(cell.dataset).max_new_tokens;
  int64_t most = spec.max_positions - item.new_tokens - kSlack;
  require(most >= 2, cell.dataset, ": the model's ", spec.max_positions, " positions leave no room for a prompt");
  if (cell.max_tokens > 0) most = std::min(most, cell.max_tokens);
  const Prompt whole = longbench_prompt(row, count);
  item.prompt.segments = encoded(truncate_middle(whole, most, codec).segments, tokenizer);
  item.bare = encoded({whole.segments.front(), whole.segments.back()}, tokenizer);
  return item;
}

}  // namespace

std::string Cell::label() const { return task.empty() ? dataset : str(task, "/", shape.segments, "x", shape.tokens); }

Cell read_cell(const nlohmann::json& json, const std::string& where) {
  require(json.is_object(), where, ": must be an object, is ", json.type_name());
  Parameters parameters(json, where);
  Cell cell;
  cell.task = parameters.text("task", "");
  if (cell.task.empty()) {
    cell.dataset = parameters.text("dataset", "");
    require(!cell.dataset.empty(), where, ": names no task and no dataset");
    cell.max_tokens = parameters.integer("max_tokens", 0, 2, int64_t{1} << 28);
  } else {
    cell.shape.segments = static_cast<int>(parameters.integer("segments", cell.shape.segments, 2, 32));
    cell.shape.tokens = static_cast<int>(parameters.integer("tokens", cell.shape.tokens, 16, 4096));
  }
  cell.rows = parameters.integer("rows", cell.task.empty() ? 200 : 500, 1, kMost);
  cell.new_tokens = parameters.integer("new_tokens", 0, 1, kMost);
  parameters.refuse_others();
  try {
    if (cell.task.empty())
      dataset_traits(cell.dataset);
    else
      task_named(cell.task);
  } catch (const Error& error) {
    fail(where, ": ", error.what());
  }
  return cell;
}

std::vector<Item> items_of(const Cell& cell, const std::vector<hypic::Item>& loaded, const Tokenizer& tokenizer,
                           const ModelSpec& spec, uint64_t seed, const std::function<void(size_t)>& progress) {
  const auto rows = cell.task.empty() ? std::min<size_t>(cell.rows, loaded.size()) : static_cast<size_t>(cell.rows);
  std::vector<Item> items;
  std::set<std::string> ids;
  for (size_t i = 0; i < rows; ++i) {
    progress(i);
    Item item =
        cell.task.empty() ? dataset_item(cell, loaded[i], tokenizer, spec) : task_item(cell, tokenizer, seed, i);
    if (cell.new_tokens > 0) item.new_tokens = cell.new_tokens;
    // Rows are told apart by it when a run resumes.
    if (item.prompt.id.empty() || !ids.insert(item.prompt.id).second) ids.insert(item.prompt.id += str("#", i));
    require(item.prompt.segments.size() >= 2, item.prompt.id, ": has no document before its question");
    int64_t tokens = item.new_tokens;
    for (const Tokens& segment : item.prompt.segments) tokens += static_cast<int64_t>(segment.size());
    require(tokens <= spec.max_positions, item.prompt.id, ": prompt and answer of ", tokens,
            " tokens exceed the model's ", spec.max_positions, " positions");
    items.push_back(std::move(item));
  }
  return items;
}

double score(const Cell& cell, const Item& item, std::string_view output) {
  if (cell.task.empty()) return score_prediction(dataset_traits(cell.dataset), output, item.answers);
  return trimmed(output) == trimmed(item.answers.at(0)) ? 1 : 0;
}

}  // namespace hypic::quality
