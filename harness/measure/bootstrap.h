// Medians, tails and their intervals from few samples, without assuming how they are distributed.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace hypic {

struct Interval {
  double low = 0, high = 0;
};

inline constexpr int kResamples = 2000;

// With fewer samples an interval of the median says less than the samples themselves: that of five runs
// goes from the smallest to the largest and still misses the true median once in sixteen.
inline constexpr int64_t kSamplesForInterval = 6;

// The p-quantile, 0 ≤ p ≤ 1, interpolated between neighbours: 0 is the smallest, 1 the largest. Of
// one sample at least.
double quantile(std::span<const double> samples, double p);
double median(std::span<const double> samples);

// How many samples it takes until one of them is expected beyond the p-quantile, p < 1: with fewer
// it is the largest sample and says nothing about a tail.
int64_t samples_for(double p);

// The 95 % percentile bootstrap (Efron, Annals of Statistics 7, 1979) of the median; the same for
// the same seed.
Interval median_interval(std::span<const double> samples, uint64_t seed,
                         int resamples = kResamples);

// The same of the mean of the groups' means, each group drawn by itself; of one group the mean. {NaN, NaN} where there
// is none, or an empty one.
Interval mean_interval(std::span<const std::vector<double>> groups, uint64_t seed, int resamples = kResamples);

// The same of (Σ mode − Σ floor) / (Σ full − Σ floor), the share of what `full` gains over `floor` that `mode` keeps;
// sample i of the three is the same item, so items are drawn. {NaN, NaN} where some draw of full gains nothing.
Interval recovered_interval(std::span<const double> mode, std::span<const double> floor, std::span<const double> full,
                            uint64_t seed, int resamples = kResamples);

// The same of median(numerator) / median(denominator). Sample i of both is from the same round, so
// that what slowed a round down slowed both: rounds are drawn, not samples.
Interval ratio_interval(std::span<const double> numerator, std::span<const double> denominator,
                        uint64_t seed, int resamples = kResamples);

}  // namespace hypic
