// What an endpoint streams back: server-sent events, read as they arrive.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "harness/load/prompts.h"

namespace hypic::load {

// Splits a stream into events: the joined `data:` lines up to an empty line. Comments and other fields are left out.
class EventReader {
 public:
  // Calls `event(std::string_view data)` for each that `bytes` completes.
  template <class Event>
  void feed(std::string_view bytes, Event&& event) {
    for (const char c : bytes) {
      if (c != '\n') {
        line_ += c;
        continue;
      }
      if (!line_.empty() && line_.back() == '\r') line_.pop_back();
      if (line_.empty()) {
        if (has_data_) event(std::string_view(data_));
        data_.clear();
        has_data_ = false;
      } else if (line_.starts_with("data:")) {
        if (has_data_) data_ += '\n';
        data_.append(line_, line_.size() > 5 && line_[5] == ' ' ? 6 : 5);
        has_data_ = true;
      }
      line_.clear();
    }
  }

 private:
  std::string line_, data_;
  bool has_data_ = false;
};

// One answer, token by token. Times are seconds on the client's clock.
struct Answer {
  std::vector<double> tokens_at;  // of each piece of text that was not empty: a piece may be several tokens
  int64_t prompt_tokens = -1, output_tokens = -1, cached_tokens = -1;  // by the server; -1: it did not say
  bool done = false;                                                   // [DONE], or a reason to finish, has come
  std::string error;                                                   // what the server said of one
};

class AnswerReader {
 public:
  explicit AnswerReader(Api api) : api_(api) {}
  // Bytes that came off the socket at `at`.
  void feed(std::string_view bytes, double at);
  const Answer& answer() const { return answer_; }

 private:
  void read(std::string_view data, double at);
  Api api_;
  EventReader events_;
  Answer answer_;
  size_t text_ = 0;  // bytes so far where each event repeats all of the text
};

}  // namespace hypic::load
