#include "harness/cases/compare.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/check.h"
#include "reports/text.h"

namespace hypic::conformance {
namespace {

// Group of an element along `axis`.
class Groups {
 public:
  Groups(const Array& x, int axis) {
    if (axis < 0) return;
    inner_ = x.product(static_cast<size_t>(axis) + 1);
    count_ = x[axis];
  }
  int64_t count() const { return count_; }
  int64_t operator()(int64_t element) const { return count_ == 1 ? 0 : element / inner_ % count_; }

 private:
  int64_t inner_ = 1, count_ = 1;
};

double at(const std::vector<double>& values, int64_t group) {
  if (values.empty()) return 0;
  return values.size() == 1 ? values[0] : values[group];
}

struct Sums {
  double difference = 0, want = 0, got = 0, product = 0, top = 0;
  double ratio(double floor) const {
    if (difference == 0) return 0;
    const double size = std::max(std::sqrt(want), floor);
    return size > 0 ? std::sqrt(difference) / size : std::numeric_limits<double>::infinity();
  }
  double cosine() const { return want > 0 && got > 0 ? product / std::sqrt(want * got) : 1; }
};

std::vector<Sums> sums_of(const Array& got, const Array& want, const Groups& groups) {
  std::vector<Sums> sums(groups.count());
  for (size_t i = 0; i < want.data.size(); ++i) {
    const double x = got.data[i], y = want.data[i];
    if (!std::isfinite(y)) continue;
    Sums& s = sums[groups(static_cast<int64_t>(i))];
    s.difference += (x - y) * (x - y);
    s.want += y * y;
    s.got += x * x;
    s.product += x * y;
    s.top = std::max(s.top, std::abs(y));
  }
  return sums;
}

bool same_place(double got, double want) {
  if (std::isnan(want)) return std::isnan(got);
  return std::isfinite(want) ? std::isfinite(got) : got == want;
}

std::string versus(const Array& got, const Array& want, int64_t i) {
  const double x = got.data[i], y = want.data[i];
  const auto shown = format_number(x) == format_number(y) ? format_exact : [](double z) { return format_number(z); };
  return str(coordinate(want, i), " is ", shown(x), ", expected ", shown(y));
}

}  // namespace

std::string coordinate(const Array& x, int64_t element) {
  std::string text;
  for (size_t axis = x.shape.size(); axis-- > 0; element /= x.shape[axis])
    text = str(element % x.shape[axis], text.empty() ? "" : ", ", text);
  return "[" + text + "]";
}

Comparison compare(const Array& got, const Array& want, int axis, const std::vector<double>& bounds,
                   const std::vector<double>& floors) {
  HYPIC_CHECK(got.shape == want.shape);
  Comparison c;
  const int64_t size = static_cast<int64_t>(want.data.size());
  for (int64_t i = 0; i < size; ++i)
    if (!same_place(got.data[i], want.data[i])) {
      c.rms = c.max_abs = std::numeric_limits<double>::infinity();
      c.cosine = 0;
      c.bound = at(bounds, 0);
      c.wrong = versus(got, want, i);
      return c;
    }
  const Groups groups(want, axis);
  const std::vector<Sums> sums = sums_of(got, want, groups);
  double worst = -1;
  int64_t bad = -1;
  for (int64_t g = 0; g < groups.count(); ++g) {
    const double ratio = sums[g].ratio(at(floors, g)), bound = at(bounds, g);
    // The angle says nothing of a group smaller than its floor.
    const double cosine = std::sqrt(sums[g].want) > at(floors, g) ? sums[g].cosine() : 1;
    c.cosine = std::min(c.cosine, cosine);
    const bool turned = 1 - cosine > std::max(2 * bound * bound, 1e-12);
    if (bad < 0 && (ratio > bound || turned)) bad = g;
    if (ratio / bound <= worst) continue;
    worst = ratio / bound;
    c.rms = ratio;
    c.bound = bound;
  }
  int64_t first = -1, largest = -1;
  for (int64_t i = 0; i < size; ++i) {
    if (!std::isfinite(want.data[i])) continue;
    const int64_t g = groups(i);
    const double error = std::abs(got.data[i] - want.data[i]);
    c.max_abs = std::max(c.max_abs, error);
    const double top = std::max(sums[g].top, at(floors, g));
    if (first < 0 && error > kMaxOverRms * at(bounds, g) * top) first = i;
    if (g == bad && (largest < 0 || error > std::abs(got.data[largest] - want.data[largest])))
      largest = i;
  }
  if (bad < 0 && first < 0) return c;
  const int64_t where = first >= 0 ? first : largest;
  const double ratio = sums[groups(where)].ratio(at(floors, groups(where)));
  c.wrong = str(versus(got, want, where), "; RMS ratio ", format_number(ratio), ", at most ",
                format_number(at(bounds, groups(where))));
  return c;
}

std::vector<double> group_errors(const Array& moved, const Array& want, int axis,
                                 const std::vector<double>& floors) {
  const Groups groups(want, axis);
  const std::vector<Sums> sums = sums_of(moved, want, groups);
  std::vector<double> errors;
  for (int64_t g = 0; g < groups.count(); ++g) errors.push_back(sums[g].ratio(at(floors, g)));
  return errors;
}

std::string first_difference(const Array& got, const Array& want) {
  HYPIC_CHECK(got.shape == want.shape);
  for (size_t i = 0; i < want.data.size(); ++i) {
    const double x = got.data[i], y = want.data[i];
    if (x == y || (std::isnan(x) && std::isnan(y))) continue;
    return str(coordinate(want, static_cast<int64_t>(i)), " is ", format_exact(x), ", before ", format_exact(y),
               "; the same bits are asked");
  }
  return {};
}

}  // namespace hypic::conformance
