// What is sent: prompts as lists of passages, and the text or token ids of each passage, made from its id alone.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "datasets/trace.h"

namespace hypic::load {

struct Passage {
  uint64_t id;  // the same id and length is the same passage
  int32_t tokens;
};

struct Prompt {
  std::vector<Passage> passages;  // the question last
  int64_t output_tokens = 1;      // asked for, at most
};

struct Shape {
  int64_t segments = 4, tokens = 512;  // passages of a prompt before the question, and the length of each
  int64_t question = 64;               // tokens; each question is asked once
  int64_t pool = 0;  // distinct passages, drawn without repeats within a prompt; 0: no passage comes twice
  int64_t output_tokens = 1;
  uint64_t seed = 1;
};

// Prompts first … first + requests − 1 of an endless row that the seed fixes. Error: fewer passages in the pool than
// in a prompt.
std::vector<Prompt> make_prompts(const Shape& shape, int64_t first, int64_t requests);

// Those of a trace; `output_tokens` 0: as many as the trace says, at least 1.
std::vector<Prompt> make_prompts(const Trace& trace, int64_t first, int64_t requests, int64_t output_tokens);

// English of about `tokens` tokens (three words to four tokens), the same for the same id and seed: phrases of the
// project's own text, led by a word that no other id has.
class Words {
 public:
  explicit Words(std::string_view text);  // Error: a text of fewer than 64 words
  std::string passage(const Passage& passage, uint64_t seed) const;

 private:
  std::vector<std::string> words_;
};

// Token ids in [low, high), the same for the same id and seed.
std::vector<int32_t> token_ids(const Passage& passage, uint64_t seed, int32_t low, int32_t high);

enum class Api {
  openai,    // POST /v1/completions: prompt is a text or token ids
  generate,  // POST /generate: text or input_ids, sampling_params
};

enum class Form {
  text,      // passages with a separator between them
  ids,       // token ids, one list
  segments,  // token ids by passage: hypic's own field, with Api::openai
};

struct BodyOptions {
  Api api = Api::openai;
  std::string model;               // of the body; empty: left out
  std::string separator = "\n\n";  // between passages of a text
  Form form = Form::text;
  int32_t vocabulary = 32000;  // ids are drawn from [256, vocabulary)
  uint64_t seed = 1;
};

// Makes request bodies; keeps each passage once, so that a body is a few copies when it is due.
class Bodies {
 public:
  // Of these prompts, which must outlive this.
  Bodies(const std::vector<Prompt>& prompts, const BodyOptions& options);
  int64_t size() const { return static_cast<int64_t>(prompts_.size()); }
  int64_t output_tokens(int64_t i) const { return prompts_[i].output_tokens; }  // asked for
  // JSON. May be called from several threads at once.
  std::string body(int64_t i) const;

 private:
  const std::vector<Prompt>& prompts_;
  BodyOptions options_;
  std::string separator_;                                                            // escaped
  std::unordered_map<uint64_t, std::unordered_map<int32_t, std::string>> rendered_;  // by id and length
};

}  // namespace hypic::load
