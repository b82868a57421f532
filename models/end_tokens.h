// Which tokens end a model's answer.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace hypic {

// eos_token_id of the folder's generation_config.json, or where that does not say of its config.json, there also in
// text_config: one id or several. None for random:… and where neither file says. Error: a file that is no JSON, an id
// that is none or not within the vocabulary.
std::vector<int32_t> end_tokens(const std::string& name_or_folder, int32_t vocabulary);

}  // namespace hypic
