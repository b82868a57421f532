// Files that belong to the project: suites, datasets, the tokenizer of the tiny models.
#pragma once

#include <string>

namespace hypic {

// `path` as given where it exists, else under the folder that hypic was built from; as given if
// neither.
std::string asset(const std::string& path);

}  // namespace hypic
