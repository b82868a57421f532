#include "harness/model_choice.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>

#include "harness/assets.h"
#include "harness/backends.h"

namespace hypic {
namespace {

namespace fs = std::filesystem;

fs::path hub_cache() {
  const auto set = [](const char* name) {
    const char* value = std::getenv(name);
    return fs::path(value ? value : "");
  };
  if (!set("HF_HUB_CACHE").empty()) return set("HF_HUB_CACHE");
  if (!set("HF_HOME").empty()) return set("HF_HOME") / "hub";
  return set("HOME") / ".cache/huggingface/hub";
}

}  // namespace

std::string model_path(const std::string& name) {
  if (name.empty() || name.starts_with("random:")) return name;
  const std::string here = asset(name);
  std::error_code error;
  const size_t slash = name.find('/');
  if (fs::exists(here, error) || slash == name.npos || name.find('/', slash + 1) != name.npos) return here;
  const fs::path repository = hub_cache() / ("models--" + name.substr(0, slash) + "--" + name.substr(slash + 1));
  std::string revision;
  std::ifstream(repository / "refs/main") >> revision;
  const fs::path snapshot = repository / "snapshots" / revision;
  return !revision.empty() && fs::is_directory(snapshot, error) ? snapshot.string() : name;
}

ModelChoice read_model_choice(Parameters& parameters, const DriverContext& context) {
  ModelChoice choice{parameters.text("model", kDefaultModel), parameters.text("backend", "cpu")};
  if (!context.model.empty()) choice.model = context.model;
  if (!context.backend.empty()) choice.backend = context.backend;
  choice.model = model_path(choice.model);
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
