#include "models/end_tokens.h"

#include <filesystem>
#include <nlohmann/json.hpp>

#include "core/check.h"
#include "core/file.h"
#include "core/json.h"

namespace hypic {
namespace {

using nlohmann::json;

constexpr size_t kMaxConfig = 16 << 20;

int32_t id_of(const json& value, const std::string& path, int32_t vocabulary) {
  require(is_integer_in(value, 0, INT32_MAX), path, ": eos_token_id: must be one or several token ids, is ",
          shown(value));
  require(value < vocabulary, path, ": eos_token_id ", shown(value), " is outside the vocabulary of ", vocabulary,
          "; no answer would end");
  return value;
}

// Empty where `config` does not say.
std::vector<int32_t> ids_in(const json& config, const std::string& path, int32_t vocabulary) {
  std::vector<int32_t> ids;
  const auto found = config.find("eos_token_id");
  if (!config.is_object() || found == config.end() || found->is_null()) return ids;
  if (!found->is_array()) return {id_of(*found, path, vocabulary)};
  for (const json& one : *found) ids.push_back(id_of(one, path, vocabulary));
  return ids;
}

}  // namespace

std::vector<int32_t> end_tokens(const std::string& name_or_folder, int32_t vocabulary) {
  if (name_or_folder.starts_with("random:")) return {};
  for (const char* name : {"/generation_config.json", "/config.json"}) {
    const std::string path = name_or_folder + name;
    std::error_code error;
    if (!std::filesystem::exists(path, error)) continue;
    const json config = parse_json(read_file(path, kMaxConfig), path);
    std::vector<int32_t> ids = ids_in(config, path, vocabulary);
    if (ids.empty() && config.is_object() && config.contains("text_config"))
      ids = ids_in(config["text_config"], path, vocabulary);
    if (!ids.empty()) return ids;
  }
  return {};
}

}  // namespace hypic
