// Qwen3.5 text models, dense: gated DeltaNet layers and, every fourth, gated full attention.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "models/spec.h"

namespace hypic {

// The published sizes, and qwen3.5-tiny, which runs on a CPU in seconds.
std::vector<ModelSpec> qwen3_5_specs();

ModelSpec qwen3_5_from_config(const nlohmann::json& config, const std::string& where);

std::vector<TensorSpec> qwen3_5_tensors(const ModelSpec& spec);

}  // namespace hypic
