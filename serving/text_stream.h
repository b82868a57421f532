// The text of an answer while its tokens come.
#pragma once

#include <string>
#include <vector>

#include "models/tokenizer.h"
#include "serving/planner.h"

namespace hypic {

// Gives out text as soon as it can no longer change: whole characters, and nothing that may turn out to begin a stop
// text.
class TextStream {
 public:
  TextStream(const Tokenizer& tokenizer, std::vector<std::string> stops)
      : tokenizer_(tokenizer), stops_(std::move(stops)) {}

  // What one more token adds. Behind a stop text nothing more comes.
  std::string add(int32_t token);
  // What was held back, at the end of the answer.
  std::string finish();
  bool stopped() const { return stopped_; }

 private:
  std::string release(bool all);

  const Tokenizer tokenizer_;
  const std::vector<std::string> stops_;
  Tokens pending_;    // not yet whole characters
  std::string held_;  // decoded, may begin a stop text
  bool stopped_ = false;
};

}  // namespace hypic
