#include "harness/measure/routes.h"

#include <algorithm>
#include <cstring>

#include "core/check.h"

namespace hypic {

void Routes::see(const std::string& name, const Tensor& tensor) {
  if (!name.ends_with(".moe.experts")) return;
  std::vector<int32_t>& experts = seen[name];
  experts.resize(tensor.size());
  backend_.download(experts.data(), tensor);
  const int64_t k = tensor[1];
  for (int64_t r = 0; r < tensor[0]; ++r) std::sort(experts.begin() + r * k, experts.begin() + (r + 1) * k);
}

void SameRoutes::begin(const ChainTable& table) {
  slot_of_.clear();
  for (int32_t row = 0; row < table.row_count(); ++row) {
    const std::pair key(table.labels.at(table.chain_of[row]), table.positions[row]);
    if (following_) {
      const auto found = slots_.find(key);
      slot_of_.push_back(found == slots_.end() ? -1 : static_cast<int64_t>(found->second));
    } else {
      slot_of_.push_back(static_cast<int64_t>(slots_.emplace(key, slots_.size()).first->second));
    }
  }
}

void SameRoutes::routed(int number, const Tensor& experts, const Tensor& weights) {
  const int64_t k = experts[1];
  const size_t row_bytes = weights.bytes() / std::max<int64_t>(weights[0], 1);
  HYPIC_CHECK(static_cast<size_t>(experts[0]) == slot_of_.size());
  std::vector<int32_t> chosen(experts.size());
  std::vector<char> weighed(weights.bytes());
  backend_->download(chosen.data(), experts);
  backend_->download(weighed.data(), weights);
  Layer& layer = layers_[number];
  if (!following_) {
    layer.experts.resize(slots_.size() * k);
    layer.weights.resize(slots_.size() * row_bytes);
    layer.known.resize(slots_.size());
  }
  for (size_t row = 0; row < slot_of_.size(); ++row) {
    const int64_t slot = slot_of_[row];
    int32_t* experts_here = chosen.data() + row * k;
    char* weights_here = weighed.data() + row * row_bytes;
    if (!following_) {
      std::copy_n(experts_here, k, layer.experts.begin() + slot * k);
      std::copy_n(weights_here, row_bytes, layer.weights.begin() + slot * static_cast<int64_t>(row_bytes));
      layer.known[slot] = true;
    } else if (slot >= 0 && layer.known.at(slot)) {
      const auto then = layer.experts.begin() + slot * k;
      ++followed_;
      moved_ += !std::is_permutation(then, then + k, experts_here);
      std::copy_n(then, k, experts_here);
      std::copy_n(layer.weights.begin() + slot * static_cast<int64_t>(row_bytes), row_bytes, weights_here);
    }
  }
  if (!following_) return;
  backend_->upload(experts, chosen.data());
  backend_->upload(weights, weighed.data());
}

}  // namespace hypic
