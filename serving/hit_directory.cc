#include "serving/hit_directory.h"

#include <algorithm>
#include <cmath>

namespace hypic {

void HitDirectory::update(int worker, uint64_t incarnation, bool snapshot, std::span<const ResidueChange> changes) {
  Worker& known = workers_[worker];
  if (snapshot || known.incarnation != incarnation) known.keys.clear();
  known.incarnation = incarnation;
  for (const auto& [key, here] : changes) {
    if (here)
      known.keys.insert(key);
    else
      known.keys.erase(key);
  }
}

void HitDirectory::forget(int worker) { workers_.erase(worker); }

bool HitDirectory::has(int worker, const SegmentKey& key) const {
  const auto found = workers_.find(worker);
  return found != workers_.end() && found->second.keys.contains(key);
}

int64_t HitDirectory::size() const {
  int64_t size = 0;
  for (const auto& [worker, known] : workers_) size += static_cast<int64_t>(known.keys.size());
  return size;
}

void CostModel::add(double tokens, double seconds) {
  if (!(tokens > 0) || !(seconds >= 0) || !std::isfinite(seconds)) return;
  constexpr double kKept = 0.95;
  for (double* sum : {&weight_, &n_, &nn_, &y_, &ny_}) *sum *= kKept;
  weight_ += 1;
  n_ += tokens;
  nn_ += tokens * tokens;
  y_ += seconds;
  ny_ += tokens * seconds;
}

double CostModel::operator()(double tokens) const {
  if (!measured()) return tokens;
  // Of one length only, or with noise: through the origin rather than a line that falls or begins below it.
  const double spread = nn_ - n_ * n_ / weight_;
  double slope = spread > 1e-9 * nn_ ? (ny_ - n_ * y_ / weight_) / spread : 0;
  double start = (y_ - slope * n_) / weight_;
  if (slope <= 0 || start < 0) {
    slope = ny_ / nn_;
    start = 0;
  }
  return start + slope * tokens;
}

}  // namespace hypic
