#include "harness/measure/cold_simulation.h"

#include <algorithm>
#include <numeric>

#include "core/check.h"

namespace hypic {

ColdTimes simulate_cold(const ColdPlan& plan, const ColdCosts& costs) {
  HYPIC_CHECK(plan.workers > 0 && plan.layers > 0 && plan.rows > 0);
  const auto layers = static_cast<double>(plan.layers);
  const auto bytes = [&](int64_t tokens) {
    return plan.residue_bytes + plan.token_bytes * static_cast<double>(tokens);
  };
  // As the router assigns: what a segment costs alone, the one that combines charged with the rest of the request.
  const auto n = static_cast<int64_t>(plan.segments.size());
  const int64_t rest = plan.question + n * plan.seam;
  std::vector<AssignmentItem> items;
  for (const int64_t tokens : plan.segments)
    items.push_back({costs.forward + costs.token * static_cast<double>(tokens), costs.send_byte * bytes(tokens)});
  std::vector<double> loads(plan.workers);
  loads[0] = costs.forward + costs.token * static_cast<double>(rest);
  size_t turn = 0;
  ColdTimes times;
  times.worker = assign(items, loads, plan.policy, turn).worker;
  times.busy.assign(plan.workers, 0);

  // A packet: one layer of one residue, and when it is in host memory at its sender.
  struct Packet {
    double ready, bytes;
    int64_t layer;
  };
  std::vector<std::pair<double, Packet>> sent;  // by when it has left
  for (int w = 1; w < plan.workers; ++w) {
    std::vector<Packet> queue;
    double now = costs.request;
    for (size_t i = 0; i < plan.segments.size();) {
      // The next forward: segments in the order of the prompt, as many as its rows hold.
      std::vector<int64_t> group;
      int64_t rows = 0;
      for (; i < plan.segments.size(); ++i) {
        if (times.worker[i] != w) continue;
        if (!group.empty() && rows + plan.segments[i] > plan.rows) break;
        group.push_back(plan.segments[i]);
        rows += plan.segments[i];
      }
      if (group.empty()) break;
      const double pieces = static_cast<double>((rows + plan.rows - 1) / plan.rows);  // one alone may have more rows
      const double seconds = pieces * costs.forward + costs.token * static_cast<double>(rows);
      for (int64_t layer = 0; layer < plan.layers; ++layer)
        for (const int64_t tokens : group) {
          const double done = plan.pipelined ? seconds * static_cast<double>(layer + 1) / layers : seconds;
          queue.push_back({now + done, bytes(tokens) / layers, layer});
        }
      now += seconds;
      times.busy[w] += seconds;
    }
    if (!queue.empty()) times.scatter = std::max(times.scatter, now);
    double free = 0;
    for (const Packet& packet : queue) {
      free = std::max(free, packet.ready) + costs.send_byte * packet.bytes;
      sent.emplace_back(free, packet);
    }
  }
  // The receiver takes them as they come.
  std::stable_sort(sent.begin(), sent.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<double> here(plan.layers, 0);
  double free = 0;
  for (const auto& [left, packet] : sent) {
    free = std::max(free, left) + costs.receive_byte * packet.bytes;
    here[packet.layer] = std::max(here[packet.layer], free);
  }
  times.arrived = sent.empty() ? 0 : *std::max_element(here.begin(), here.end());
  if (!plan.pipelined) std::fill(here.begin(), here.end(), times.arrived);

  // The one that combines: its own segments, seams and question, in as many forwards as their rows take; what arrives
  // is awaited by the first.
  int64_t own = rest;
  for (int64_t i = 0; i < n; ++i)
    if (times.worker[i] == 0) own += plan.segments[i];
  const int64_t forwards = std::max<int64_t>(1, (own + plan.rows - 1) / plan.rows);
  const double seconds = static_cast<double>(forwards) * costs.forward + costs.token * static_cast<double>(own);
  times.busy[0] = seconds;
  double now = costs.request;
  const double each = seconds / static_cast<double>(forwards);
  for (int64_t forward = 0; forward < forwards; ++forward)
    for (int64_t layer = 0; layer < plan.layers; ++layer) {
      if (forward == 0) now = std::max(now, here[layer]);
      now += each / layers;
    }
  times.total = now;
  return times;
}

}  // namespace hypic
