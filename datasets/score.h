// LongBench's scores, digit for digit: its metrics.py and the package rouge 1.0.1 that it uses.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "datasets/dataset.h"

namespace hypic {

// F1 of the words that two texts share, each as often as in both; in [0, 1]. Words are what white
// space separates after lower-casing (Unicode), deleting ASCII punctuation ("10,000" is "10000")
// and replacing the words a, an and the.
double qa_f1(std::string_view prediction, std::string_view answer);

// Summary-level ROUGE-L: the union, over all pairs of sentences, of the words in their longest
// common subsequences, as sets of words; in [0, 1), 0.999999995 for equal texts. Sentences end at
// ".", case counts, nothing is stemmed. As LongBench: 0 where a text has no sentence, and where a
// pair of sentences is so long that rouge's recursion passes Python's limit of 1000 frames, 9 of
// which are LongBench's and rouge's own (measured with a stand-in for its eval.py at the same call depth on Python 3.11).
double rouge_l(std::string_view prediction, std::string_view reference);

// What LongBench gives `prediction`, between 0 and 1: the best over `answers`, 0 without any.
double score_prediction(const DatasetTraits& traits, std::string_view prediction,
                        const std::vector<std::string>& answers);

// The scores of a file's rows {"pred": text, "answers": [text, …]}; the file may be of any length,
// "-" is standard input. Throws Error, with path:line, for a row that is none; with the path for a
// file without rows.
std::vector<double> score_file(const std::string& path, const DatasetTraits& traits);

double mean_of(const std::vector<double>& values);  // 0 for none

struct Interval {
  double low = 0, high = 0;
};

// The 95 % percentile bootstrap interval of the mean, {0, 0} for no values: 10,000 resamples, fewer
// (not under 1000) for more than 20,000 values. The same seed gives the same interval anywhere.
Interval bootstrap_interval(const std::vector<double>& values, uint64_t seed = 0);

}  // namespace hypic
