// The backends of a tensor-parallel group, for tests.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "core/backend.h"

namespace hypic {

struct RankBackends {
  explicit RankBackends(std::vector<std::unique_ptr<Backend>> made) : own(std::move(made)) {
    for (const auto& backend : own) all.push_back(backend.get());
  }
  const std::vector<std::unique_ptr<Backend>> own;
  std::vector<Backend*> all;  // as Model::open takes them
};

}  // namespace hypic
