#include "harness/model_choice.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <random>

#include "harness/assets.h"
#include "harness/backends.h"
#include "kernels/device.h"

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

std::string ModelChoice::on() const {
  return devices.size() < 2 ? backend : str(backend, ", ", devices.size(), " tensor-parallel ranks");
}

std::vector<int> rank_devices(int64_t ranks, const std::vector<int64_t>& given, const std::string& where) {
  require(given.empty() || static_cast<int64_t>(given.size()) == ranks, where, ": must name a device for each of ",
          ranks, ranks == 1 ? " rank" : " ranks", ", names ", given.size());
  std::vector<int> devices(given.begin(), given.end());
  if (devices.empty() && ranks > 1) {
    devices.resize(ranks);
    std::iota(devices.begin(), devices.end(), 0);
  }
  return devices;
}

void require_gpus(const ModelChoice& choice) {
  if (choice.devices.size() < 2 || !choice.backend.starts_with("cuda")) return;
  std::string why;
  const auto found = static_cast<int>(gpus(&why).size());
  const int needed = 1 + *std::max_element(choice.devices.begin(), choice.devices.end());
  if (found < needed)
    throw MachineLacks(str(choice.devices.size(), " tensor-parallel ranks on ", choice.backend, " take ", needed,
                           " GPUs, this machine has ", found,
                           found == 0 ? ": " + why : "; --devices 0,0 tries two ranks on one"));
}

ModelChoice read_model_choice(Parameters& parameters, const DriverContext& context, Ranks ranks) {
  ModelChoice choice{parameters.text("model", kDefaultModel), parameters.text("backend", "cpu")};
  if (!context.model.empty()) choice.model = context.model;
  if (!context.backend.empty()) choice.backend = context.backend;
  choice.model = model_path(choice.model);
  if (ranks == Ranks::several) {
    const int64_t count = parameters.integer("tensor_parallel", 1, 1, kMostRanks);
    choice.devices =
        rank_devices(count, parameters.integers("devices", {}, 0, kMostRanks - 1), parameters.place("devices"));
    if (!context.devices.empty()) choice.devices = context.devices;
  }
  if (choice.devices.size() < 2) {
    require_backend(choice.backend, context);
  } else {
    part_of(spec_of(choice.model), 0, static_cast<int>(choice.devices.size()));
    if (context.no_gpu) require_backend(choice.backend, context);  // a run says itself what it has too few of: SKIP
  }
  return choice;
}

OpenModel::OpenModel(const ModelChoice& choice) {
  require_gpus(choice);
  if (choice.devices.size() < 2)
    backends_.push_back(make_backend(choice.backend, choice.devices.empty() ? 0 : choice.devices[0]));
  else
    backends_ = make_ranks(choice.backend, choice.devices);
  std::vector<Backend*> ranks;
  for (const auto& backend : backends_) ranks.push_back(backend.get());
  model_.emplace(Model::open(ranks, choice.model));
}

std::shared_ptr<ModelShelf> ModelShelf::shared() {
  static std::weak_ptr<ModelShelf> kept;
  auto shelf = kept.lock();
  if (!shelf) kept = shelf = std::make_shared<ModelShelf>();
  return shelf;
}

const Model& ModelShelf::open(const ModelChoice& choice) {
  if (!open_ || choice != choice_) {
    open_.reset();
    open_.emplace(choice);
    choice_ = choice;
  }
  return open_->model();
}

Tokens random_tokens(int64_t count, int32_t vocabulary, uint64_t seed) {
  std::mt19937_64 bits(seed);
  Tokens tokens(count);
  for (int32_t& token : tokens) token = static_cast<int32_t>(bits() % static_cast<uint64_t>(vocabulary));
  return tokens;
}

}  // namespace hypic
