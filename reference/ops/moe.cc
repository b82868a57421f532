#include "reference/ops/moe.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "reference/ops/dot.h"
#include "reference/ops/pointwise.h"
#include "reference/ops/threads.h"

namespace hypic::reference {
namespace {

template <class T>
std::vector<T> scores_of(const T* logits, int64_t E, RouteArgs::Score score) {
  std::vector<T> scores(logits, logits + E);
  if (score == RouteArgs::Score::sigmoid) {
    for (T& s : scores) s = activate(s, Activation::sigmoid);
    return scores;
  }
  const T top = *std::max_element(scores.begin(), scores.end());
  T sum = 0;
  for (T& s : scores) sum += s = std::exp(s - top);
  for (T& s : scores) s /= sum;
  return scores;
}

// The indices of the `count` largest, falling; the lowest index wins a tie.
template <class T>
std::vector<int64_t> largest(const std::vector<T>& x, int64_t count) {
  std::vector<int64_t> order(x.size());
  for (size_t i = 0; i < x.size(); ++i) order[i] = static_cast<int64_t>(i);
  std::partial_sort(order.begin(), order.begin() + count, order.end(),
                    [&](int64_t a, int64_t b) { return x[a] > x[b] || (x[a] == x[b] && a < b); });
  order.resize(count);
  return order;
}

// Leaves the best groups, each judged by the sum of its two best; the rest falls to −∞.
template <class T>
void keep_groups(std::vector<T>& choice, int64_t groups, int64_t kept) {
  const int64_t width = static_cast<int64_t>(choice.size()) / groups;
  std::vector<T> totals(groups);
  for (int64_t g = 0; g < groups; ++g) {
    const std::vector<T> group(choice.begin() + g * width, choice.begin() + (g + 1) * width);
    for (const int64_t i : largest(group, std::min<int64_t>(2, width))) totals[g] += group[i];
  }
  std::vector<bool> keep(groups);
  for (const int64_t g : largest(totals, kept)) keep[g] = true;
  for (size_t e = 0; e < choice.size(); ++e)
    if (!keep[e / width]) choice[e] = -INFINITY;
}

}  // namespace

template <class T>
void route(const RouteArgs& args) {
  Shapes shapes("route");
  shapes.bind(args.logits, "logits", {"R", "E"}).bind(args.experts, "experts", {"R", "k"})
      .bind(args.weights, "weights", {"R", "k"});
  if (args.bias) shapes.bind(args.bias, "bias", {"E"});
  check_dtype<T>(args.logits, args.bias, args.weights);
  const int64_t R = shapes["R"], E = shapes["E"], k = shapes["k"];
  HYPIC_CHECK(args.groups >= 1 && E % args.groups == 0 && 1 <= args.kept_groups &&
                  args.kept_groups <= args.groups && 1 <= k && k <= E / args.groups * args.kept_groups,
              "route: ", k, " of ", E, " experts in ", args.kept_groups, " of ", args.groups, " groups");
  for (int64_t r = 0; r < R; ++r) {
    const std::vector<T> scores =
        scores_of(args.logits.as<T>() + r * args.logits.stride[0], E, args.score);
    std::vector<T> choice = scores;
    if (args.bias)
      for (int64_t e = 0; e < E; ++e) choice[e] += args.bias.as<T>()[e];
    if (args.kept_groups < args.groups) keep_groups(choice, args.groups, args.kept_groups);
    const std::vector<int64_t> chosen = largest(choice, k);
    T sum = 0;
    for (const int64_t e : chosen) sum += scores[e];
    const T factor =
        static_cast<T>(args.scale) / (args.renormalise ? sum + static_cast<T>(kRouteEps) : T{1});
    for (int64_t j = 0; j < k; ++j) {
      args.experts.as<int32_t>()[r * args.experts.stride[0] + j] = static_cast<int32_t>(chosen[j]);
      args.weights.as<T>()[r * args.weights.stride[0] + j] = scores[chosen[j]] * factor;
    }
  }
}

template <class T>
void experts(const ExpertsArgs& args) {
  Shapes shapes("experts");
  shapes.bind(args.x, "x", {"R", "N"}).bind(args.experts, "experts", {"R", "k"})
      .bind(args.weights, "weights", {"R", "k"}).bind(args.up, "up", {"E", "U", "N"})
      .bind(args.down, "down", {"E", "N", "I"}).bind(args.out, "out", {"R", "N"});
  check_dtype<T>(args.x, args.weights, args.up, args.down, args.out);
  const int64_t R = shapes["R"], N = shapes["N"], k = shapes["k"], E = shapes["E"], I = shapes["I"],
                U = shapes["U"];
  HYPIC_CHECK(U == (args.gated ? 2 * I : I) && args.up.contiguous() && args.down.contiguous() &&
              args.x.stride[1] == 1 && args.out.stride[1] == 1 && args.x.data != args.out.data);
  parallel_for(R, R * k * N * I * 3, [&](int64_t r) {
    const T* x = args.x.as<T>() + r * args.x.stride[0];
    T* out = args.out.as<T>() + r * args.out.stride[0];
    std::fill(out, out + N, T{0});
    std::vector<T> inner(I);
    for (int64_t j = 0; j < k; ++j) {
      const int64_t e = args.experts.as<int32_t>()[r * args.experts.stride[0] + j];
      HYPIC_CHECK(0 <= e && e < E, "expert ", e, " of ", E);
      const T weight = args.weights.as<T>()[r * args.weights.stride[0] + j];
      const T* up = args.up.as<T>() + e * U * N;
      const T* down = args.down.as<T>() + e * N * I;
      for (int64_t i = 0; i < I; ++i) {
        const T first = activate(dot(x, up + i * N, N), args.activation);
        inner[i] = args.gated ? first * dot(x, up + (I + i) * N, N) : first;
      }
      for (int64_t n = 0; n < N; ++n) out[n] += weight * dot(inner.data(), down + n * I, I);
    }
  });
}

template void route<float>(const RouteArgs&);
template void route<double>(const RouteArgs&);
template void experts<float>(const ExpertsArgs&);
template void experts<double>(const ExpertsArgs&);

}  // namespace hypic::reference
