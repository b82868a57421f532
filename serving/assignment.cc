#include "serving/assignment.h"

#include <algorithm>
#include <numeric>

#include "core/check.h"

namespace hypic {

std::string_view name_of(Policy policy) { return policy == Policy::lpt ? "lpt" : "round_robin"; }

Policy policy_named(std::string_view name) {
  for (const Policy policy : {Policy::lpt, Policy::round_robin})
    if (name == name_of(policy)) return policy;
  fail("unknown policy ", name, "; there are lpt and round_robin");
}

double Assignment::makespan() const { return finish.empty() ? 0 : *std::max_element(finish.begin(), finish.end()); }

Assignment assign(const std::vector<AssignmentItem>& items, std::vector<double> loads, Policy policy, size_t& turn) {
  HYPIC_CHECK(!loads.empty());
  Assignment result{std::vector<int>(items.size(), 0), std::move(loads)};
  const auto cost = [&](const AssignmentItem& item, size_t worker) {
    const bool cached = worker < item.cached.size() && item.cached[worker];
    return (cached ? 0 : item.compute) + (worker == 0 ? 0 : item.transfer);
  };
  std::vector<size_t> order(items.size());
  std::iota(order.begin(), order.end(), size_t{0});
  // Stable, so that equal ones go out as they stand.
  if (policy == Policy::lpt)
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return items[a].compute > items[b].compute; });
  for (const size_t i : order) {
    size_t best = 0;
    if (policy == Policy::round_robin) {
      best = turn++ % result.finish.size();
    } else {
      for (size_t w = 1; w < result.finish.size(); ++w)
        if (result.finish[w] + cost(items[i], w) < result.finish[best] + cost(items[i], best)) best = w;
    }
    result.worker[i] = static_cast<int>(best);
    result.finish[best] += cost(items[i], best);
  }
  return result;
}

}  // namespace hypic
