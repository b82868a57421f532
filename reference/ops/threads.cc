#include "reference/ops/threads.h"

#include <tbb/parallel_for.h>

namespace hypic::reference {

void parallel_for(int64_t count, int64_t multiplications, const std::function<void(int64_t)>& body) {
  constexpr int64_t kWorthThreads = 200'000;
  if (multiplications < kWorthThreads)
    for (int64_t i = 0; i < count; ++i) body(i);
  else
    tbb::parallel_for(int64_t{0}, count, body);
}

}  // namespace hypic::reference
