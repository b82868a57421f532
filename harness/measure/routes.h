// Which experts the rows of a forward go to.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "core/backend.h"
#include "core/tap.h"

namespace hypic {

class Routes : public Tap {
 public:
  explicit Routes(Backend& backend) : backend_(backend) {}
  void see(const std::string& name, const Tensor& tensor) override;
  // By layers.N.moe.experts: [R · k], each row's in rising order.
  std::map<std::string, std::vector<int32_t>> seen;

 private:
  Backend& backend_;
};

}  // namespace hypic
