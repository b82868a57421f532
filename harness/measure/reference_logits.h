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
// or several ways: logits.N, chunked.N, decoded.N, … [vocabulary] float32; bfloat16.N are of its own bfloat16.
struct ReferenceLogits {
  struct Entry {
    std::string name;
    int64_t length = 0;
    std::vector<double> logits;
  };
  std::string path;
  Tokens tokens;
  std::vector<Entry> entries;
  // How far the other implementation's own bfloat16 logits, bfloat16.N, are from its float32 logits.N: the
  // largest; 0 where the file has none.
  double bfloat16_noise = 0;
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
  // Of narrow operands, beyond the bound: some row went to other experts than in float64, and the bound does not hold.
  bool rerouted = false;
};

// Whether the reference says how far this backend may be off: one with narrow operands needs bfloat16.N.
bool can_judge(const Backend& backend, const ReferenceLogits& reference);

// Every entry, each prompt prefilled whole. A backend with narrow operands may be twice as far as the reference's
// own bfloat16 is. `name`: what the model was opened by. Error: another vocabulary.
std::vector<LogitDifference> compare_logits(const Model& model, const std::string& name,
                                            const ReferenceLogits& reference,
                                            const std::function<void(double)>& progress);

}  // namespace hypic
