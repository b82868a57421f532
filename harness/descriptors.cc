#include "harness/descriptors.h"

#include <sys/resource.h>

#include <algorithm>
#include <utility>

namespace hypic {

int64_t raise_descriptors(int64_t wanted) {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return wanted;
  const auto enough = static_cast<rlim_t>(wanted);
  if (limit.rlim_cur < enough) {
    const rlimit before = std::exchange(limit, {std::min(enough, limit.rlim_max), limit.rlim_max});
    if (setrlimit(RLIMIT_NOFILE, &limit) != 0) limit = before;
  }
  return static_cast<int64_t>(std::min(limit.rlim_cur, enough));
}

}  // namespace hypic
