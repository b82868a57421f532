#include "harness/measure/routes.h"

#include <algorithm>

#include "serving/engine.h"

namespace hypic {
namespace {

constexpr int32_t kPageSize = 16;

std::map<std::string, std::vector<int32_t>> routes_of(const Model& model, const Tokens& prompt) {
  const auto n = static_cast<int64_t>(prompt.size());
  Engine engine(model, {.pools = {.state_slots = 2,
                                  .operator_slots = 1,
                                  .pages = n / kPageSize + 2,
                                  .page_size = kPageSize}});
  Routes routes(model.backend());
  engine.run({{{prompt}, 1}}, mode_named("full"), {.tap = &routes});
  return std::move(routes.seen);
}

}  // namespace

void Routes::see(const std::string& name, const Tensor& tensor) {
  if (!name.ends_with(".moe.experts")) return;
  std::vector<int32_t>& experts = seen[name];
  experts.resize(tensor.size());
  backend_.download(experts.data(), tensor);
  const int64_t k = tensor[1];
  for (int64_t r = 0; r < tensor[0]; ++r) std::sort(experts.begin() + r * k, experts.begin() + (r + 1) * k);
}

bool routed_otherwise(const Model& one, const Model& other, const Tokens& prompt) {
  return routes_of(one, prompt) != routes_of(other, prompt);
}

}  // namespace hypic
