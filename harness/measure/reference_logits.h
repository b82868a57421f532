// Logits that another implementation computed, and how far a model is from them.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "models/model.h"
#include "serving/planner.h"

namespace hypic {

// A safetensors file: `tokens` [n] int32 or int64, and for some lengths N the logits after N tokens, in one
// or several ways: logits.N, chunked.N, decoded.N, … [vocabulary] float32.
struct ReferenceLogits {
  struct Entry {
    std::string name;
    int64_t length = 0;
    std::vector<double> logits;
  };
  std::string path;
  Tokens tokens;
  std::vector<Entry> entries;
};

// Error: a damaged file, names or dtypes other than these.
ReferenceLogits load_reference_logits(const std::string& path);

struct LogitDifference {
  std::string name;
  int64_t length = 0;
  double rms = 0;         // of the reference
  double difference = 0;  // the largest, NaN where a logit is
  double bound = 0;
  double kl = 0;  // nats, of the model from the reference
  bool same_top1 = false;
};

// Every entry, each prompt prefilled whole. Error: another vocabulary.
std::vector<LogitDifference> compare_logits(const Model& model, const ReferenceLogits& reference,
                                            const std::function<void(double)>& progress);

}  // namespace hypic
