// Questions over synthetic documents that small models learn to answer: seeded, endless, and right
// only where the reuse of each document's cache is. docs/quality-tasks.md shows a sample of each.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "datasets/segment.h"

namespace hypic {

enum class Task {
  fact,       // a person, place or figure that one document names (as TriviaQA asks)
  two_hop,    // a person of one document, then what another tells of that person (HotpotQA)
  headlines,  // the headlines of all documents in order (MultiNews)
  figures,    // figures of several documents, asked by headline out of order (GovReport)
  distance,   // the headline right before or after a given one
  latest      // the last of several values that documents give one thing
};
inline constexpr Task kTasks[] = {Task::fact,    Task::two_hop,  Task::headlines,
                                  Task::figures, Task::distance, Task::latest};

// Train and test share words, templates and filler. Whatever is asked for or by (headlines, names,
// places, figures) is a pair of words or of two-digit numbers, and a pair is of one split only.
enum class TaskSplit { train, test };

std::string_view task_name(Task task);   // "fact", "two_hop", …
Task task_named(std::string_view name);  // Error, with the known ones

struct TaskShape {
  int segments = 8;  // documents, 2 to 32
  int tokens = 64;   // of a document, 16 to 4096; each is within 15 % of it by the caller's count
};

struct TaskQuestion {
  std::string text;    // ends right before the answer
  std::string answer;  // with the space before it and the full stop that ends it
};

struct TaskRow {
  std::string id;                       // task/split/seed/segments x tokens/index: "fact/test/7/8x64/12"
  std::vector<std::string> documents;   // "# Headline. …\n"
  std::vector<TaskQuestion> questions;  // the first one is scored, the others are to train on
};

// Row `index` of a stream: a function of the arguments alone. The prompt is the documents, then a
// question. Error: a shape out of range.
TaskRow task_row(Task task, const TaskShape& shape, TaskSplit split, uint64_t seed, uint64_t index,
                 const CountTokens& count, int questions = 1);

}  // namespace hypic
