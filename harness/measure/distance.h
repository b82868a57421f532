// Distances between what two runs computed.
#pragma once

#include <vector>

namespace hypic {

// ‖x − y‖ / ‖y‖; ‖x‖ where y = 0.
double relative_error(const std::vector<double>& x, const std::vector<double>& y);

// max |x − y|; NaN where a difference is.
double largest_difference(const std::vector<double>& x, const std::vector<double>& y);

// √(Σ x² / n); 0 where there is none.
double rms(const std::vector<double>& x);

// Kullback-Leibler divergence in nats of softmax(y) from softmax(x): Σ p_x (log p_x − log p_y).
double kl_divergence(const std::vector<double>& x_logits, const std::vector<double>& y_logits);

// The larger; NaN where either is, so that no error hides behind a comparison.
double worse(double a, double b);

// The index of the largest; the lowest wins a tie. −1 where one is NaN.
int argmax(const std::vector<double>& x);

}  // namespace hypic
