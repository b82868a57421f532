// Which model a case runs, on which backend.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "harness/driver.h"
#include "models/model.h"
#include "serving/planner.h"

namespace hypic {

struct ModelChoice {
  std::string model, backend;
  std::vector<int> devices = {};  // one a tensor-parallel rank; fewer than two: one rank, on the first

  bool operator==(const ModelChoice&) const = default;
  std::string on() const;  // "cuda", "cuda, 2 tensor-parallel ranks"
};

inline constexpr int64_t kMostRanks = 64;

// The devices of so many ranks: those given, or 0, 1, …; of one rank none, unless given. Error, beginning with `where`:
// another number of them.
std::vector<int> rank_devices(int64_t ranks, const std::vector<int64_t>& given, const std::string& where);

// MachineLacks where the choice is of more GPUs than there are.
void require_gpus(const ModelChoice& choice);

inline constexpr char kDefaultModel[] = "random:qwen3.5-tiny";

// Where a model is: `name` itself for random:… and for a folder; a folder of the project; or, of a name OWNER/NAME on
// the Hugging Face Hub, its snapshot in the Hub's cache on this machine (HF_HUB_CACHE, HF_HOME/hub or
// ~/.cache/huggingface/hub). As given where there is none.
std::string model_path(const std::string& name);

// Whether a driver runs models on several ranks.
enum class Ranks { one, several };

// The parameters model (kDefaultModel) and backend (cpu), unless the context names others; of several ranks also
// tensor_parallel (1) and devices (0, 1, …), the GPU of each. Error: unknown backend; ranks that cannot share the model.
ModelChoice read_model_choice(Parameters& parameters, const DriverContext& context, Ranks ranks = Ranks::one);

// A model with the backends that it runs on.
class OpenModel {
 public:
  // MachineLacks.
  explicit OpenModel(const ModelChoice& choice);
  const Model& model() const { return *model_; }
  Backend& backend() const { return model_->backend(); }  // the first rank's

 private:
  std::vector<std::unique_ptr<Backend>> backends_;
  std::optional<Model> model_;
};

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
  std::optional<OpenModel> open_;
};

// Token ids drawn from a seed: for models without a tokenizer, and where only numbers matter.
Tokens random_tokens(int64_t count, int32_t vocabulary, uint64_t seed);

}  // namespace hypic
