#include "harness/model_choice.h"

#include <random>

#include "harness/backends.h"

namespace hypic {

ModelChoice read_model_choice(Parameters& parameters, const DriverContext& context) {
  ModelChoice choice{parameters.text("model", kDefaultModel), parameters.text("backend", "cpu")};
  if (!context.model.empty()) choice.model = context.model;
  if (!context.backend.empty()) choice.backend = context.backend;
  make_backend(choice.backend);
  return choice;
}

std::shared_ptr<ModelShelf> ModelShelf::shared() {
  static std::weak_ptr<ModelShelf> kept;
  auto shelf = kept.lock();
  if (!shelf) kept = shelf = std::make_shared<ModelShelf>();
  return shelf;
}

const Model& ModelShelf::open(const ModelChoice& choice) {
  if (!model_ || choice.model != choice_.model || choice.backend != choice_.backend) {
    model_.reset();
    backend_ = make_backend(choice.backend);
    model_.emplace(Model::open(*backend_, choice.model));
    choice_ = choice;
  }
  return *model_;
}

Tokens random_tokens(int64_t count, int32_t vocabulary, uint64_t seed) {
  std::mt19937_64 bits(seed);
  Tokens tokens(count);
  for (int32_t& token : tokens) token = static_cast<int32_t>(bits() % static_cast<uint64_t>(vocabulary));
  return tokens;
}

}  // namespace hypic
