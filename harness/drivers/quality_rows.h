// What one run left on one item, as a line of items.jsonl.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "serving/planner.h"

namespace hypic::quality {

// Names of the runs that are of no mode of mode.h's: full recompute in another batching, and without the documents.
inline constexpr const char *kAgain = "again", *kFloor = "floor";

struct Row {
  std::string model;  // its name, without the folders before it
  std::string cell, id;
  std::string mode;          // of mode.h, or kAgain, kFloor
  double score = 0;          // in [0, 1]
  std::string output;        // the answer's text
  Tokens tokens;             // and its ids, the one that ended it among them
  std::vector<double> gaps;  // by token: the largest logit less the second largest, to four digits
  bool same_output = false;  // against full recompute: the same ids
  bool same_bits = false;    // and the same logits of the first
  bool same_first = false;   // and the same first id
  double kl = 0;             // nats, of the first token's distribution from full recompute
  double allowed = 0;        // what a logit may differ by on another backend
  int64_t total = 0;         // tokens of the prompt
  int64_t computed = 0;      // of them run through the model, with all documents cached
};

nlohmann::ordered_json to_json(const Row& row);
// Error, beginning with `where`, for what to_json did not make.
Row row_from_json(const nlohmann::json& json, const std::string& where);

// The rows of an items.jsonl, by whatever case. Error: a file or row that is none, a line that was edited.
std::vector<Row> load_rows(const std::string& path);

}  // namespace hypic::quality
