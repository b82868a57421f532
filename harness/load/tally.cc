#include "harness/load/tally.h"

#include <algorithm>

#include "core/check.h"
#include "harness/load/summary.h"

namespace hypic::load {

void Tally::add(const Record& record) {
  ++(record.ok() ? answered_ : failed_);
  slowest_ = std::max(slowest_, e2el(record));
}

std::string Tally::text() const {
  return str(answered_, " answered", failed_ > 0 ? str(", ", failed_, " failed") : "", " of ", requests_);
}

double Tally::left(double now) const {
  if (ended() == requests_) return 0;
  const double end = last_due_ + slowest_;
  return std::max(0.0, (ended() > 0 && now < end ? end : last_due_ + timeout_) - now);
}

}  // namespace hypic::load
