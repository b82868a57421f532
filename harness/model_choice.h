// Which model a case runs, on which backend.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "harness/driver.h"
#include "models/model.h"
#include "serving/planner.h"

namespace hypic {

struct ModelChoice {
  std::string model, backend;
};

inline constexpr char kDefaultModel[] = "random:qwen3.5-tiny";

// Where a model is: `name` itself for random:… and for a folder; a folder of the project; or, of a name OWNER/NAME on
// the Hugging Face Hub, its snapshot in the Hub's cache on this machine (HF_HUB_CACHE, HF_HOME/hub or
// ~/.cache/huggingface/hub). As given where there is none.
std::string model_path(const std::string& name);

// The parameters model (kDefaultModel) and backend (cpu), unless the context names others.
// Error: unknown backend.
ModelChoice read_model_choice(Parameters& parameters, const DriverContext& context);

// Keeps the model of the case before: cases of a suite mostly ask for the same one, loading it may take longer
// than measuring, and a large one fits no device twice.
class ModelShelf {
 public:
  // One for all cases that are prepared or running.
  static std::shared_ptr<ModelShelf> shared();
  // Valid until another is opened.
  const Model& open(const ModelChoice& choice);

 private:
  ModelChoice choice_;
  std::unique_ptr<Backend> backend_;
  std::optional<Model> model_;
};

// Token ids drawn from a seed: for models without a tokenizer, and where only numbers matter.
Tokens random_tokens(int64_t count, int32_t vocabulary, uint64_t seed);

}  // namespace hypic
