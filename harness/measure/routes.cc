#include "harness/measure/routes.h"

#include <algorithm>

namespace hypic {

void Routes::see(const std::string& name, const Tensor& tensor) {
  if (!name.ends_with(".moe.experts")) return;
  std::vector<int32_t>& experts = seen[name];
  experts.resize(tensor.size());
  backend_.download(experts.data(), tensor);
  const int64_t k = tensor[1];
  for (int64_t r = 0; r < tensor[0]; ++r) std::sort(experts.begin() + r * k, experts.begin() + (r + 1) * k);
}

}  // namespace hypic
