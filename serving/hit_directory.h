// Who has which residue, as the workers last said. A hint: who has lost one meanwhile computes it again.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <vector>

#include "serving/residue_index.h"

namespace hypic {

class HitDirectory {
 public:
  // Of a worker in one life of its process; what an earlier life had is forgotten. `snapshot`: it has nothing else.
  void update(int worker, uint64_t incarnation, bool snapshot, std::span<const ResidueChange> changes);
  void forget(int worker);  // it is lost
  bool has(int worker, const SegmentKey& key) const;
  int64_t size() const;  // residues, one with two workers twice

 private:
  struct Worker {
    uint64_t incarnation = 0;
    std::set<SegmentKey> keys;
  };
  std::map<int, Worker> workers_;
};

// Seconds for n tokens, a + b·n, learnt from what was measured, the latest counting most. Where nothing was measured a
// token costs one unit, so that costs still compare.
class CostModel {
 public:
  void add(double tokens, double seconds);
  double operator()(double tokens) const;
  bool measured() const { return weight_ > 0; }

 private:
  double weight_ = 0, n_ = 0, nn_ = 0, y_ = 0, ny_ = 0;  // sums, forgotten little by little
};

}  // namespace hypic
