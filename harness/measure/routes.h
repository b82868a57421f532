// Which experts the rows of a forward go to.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
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

// The first run that it is handed to is recorded; of later ones every row that was recorded goes where it went then,
// with the weights of then. A row is known by its chain (ChainTable::labels) and position: hand it runs of one prompt.
// Then what the runs differ by is rounding again, in the measure of tolerance.h. InternalError: runs of several k.
class SameRoutes : public RouteHook {
 public:
  explicit SameRoutes(Backend& backend) : backend_(&backend) {}
  void begin(const ChainTable& table) override;
  void routed(int layer, const Tensor& experts, const Tensor& weights) override;

  void follow() { following_ = true; }  // from here on, runs follow what was recorded
  void follow(Backend& other) {         // the same, and are of another backend with the same dtypes
    backend_ = &other;
    follow();
  }
  void forget_moved() { moved_ = followed_ = 0; }
  // Of the rows that followed, in each MoE layer: the share that would have gone to other experts.
  double moved_share() const { return followed_ == 0 ? 0 : static_cast<double>(moved_) / static_cast<double>(followed_); }

 private:
  struct Layer {
    std::vector<int32_t> experts;  // [slots · k]
    std::vector<char> weights;
    std::vector<bool> known;       // [slots]
  };

  Backend* backend_;
  bool following_ = false;
  int64_t moved_ = 0, followed_ = 0;
  std::map<std::pair<uint64_t, int32_t>, size_t> slots_;  // by chain and position
  std::vector<int64_t> slot_of_;                          // of the rows of the forward at hand; −1: not recorded
  std::map<int, Layer> layers_;
};

}  // namespace hypic
