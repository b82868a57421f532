#include "harness/measure/distance.h"

#include <algorithm>
#include <cmath>

#include "core/check.h"

namespace hypic {
namespace {

double log_sum_exp(const std::vector<double>& x) {
  const double top = *std::max_element(x.begin(), x.end());
  double sum = 0;
  for (const double value : x) sum += std::exp(value - top);
  return top + std::log(sum);
}

}  // namespace

double relative_error(const std::vector<double>& x, const std::vector<double>& y) {
  HYPIC_CHECK(x.size() == y.size());
  double difference = 0, norm = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    difference += (x[i] - y[i]) * (x[i] - y[i]);
    norm += y[i] * y[i];
  }
  return std::sqrt(norm == 0 ? difference : difference / norm);
}

double largest_difference(const std::vector<double>& x, const std::vector<double>& y) {
  HYPIC_CHECK(x.size() == y.size());
  double largest = 0;
  for (size_t i = 0; i < x.size(); ++i) largest = worse(largest, std::abs(x[i] - y[i]));
  return largest;
}

double rms(const std::vector<double>& x) {
  double squares = 0;
  for (const double value : x) squares += value * value;
  return std::sqrt(squares / static_cast<double>(std::max<size_t>(x.size(), 1)));
}

double kl_divergence(const std::vector<double>& x, const std::vector<double>& y) {
  HYPIC_CHECK(x.size() == y.size() && !x.empty());
  const double zx = log_sum_exp(x), zy = log_sum_exp(y);
  double divergence = 0;
  for (size_t i = 0; i < x.size(); ++i)
    divergence += std::exp(x[i] - zx) * ((x[i] - zx) - (y[i] - zy));
  return divergence;
}

double worse(double a, double b) { return std::isnan(a) || b <= a ? a : b; }

int argmax(const std::vector<double>& x) {
  if (std::any_of(x.begin(), x.end(), [](double v) { return std::isnan(v); })) return -1;
  return static_cast<int>(std::max_element(x.begin(), x.end()) - x.begin());
}

}  // namespace hypic
