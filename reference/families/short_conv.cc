#include "reference/families/short_conv.h"

#include <algorithm>

namespace hypic::reference {

Array short_conv(const Array& x, const Array& w, const Array& window) {
  const int64_t T = x[0], C = x[1], W = w[1];
  HYPIC_CHECK(w[0] == C && window[0] == W - 1 && window[1] == C);
  Array out({T, C});
  for (int64_t t = 0; t < T; ++t)
    for (int64_t c = 0; c < C; ++c)
      for (int64_t j = 0; j < W; ++j) {
        const int64_t from = t - (W - 1) + j;  // a row of x, or of the window before it
        out(t, c) += w(c, j) * (from >= 0 ? x(from, c) : window(from + W - 1, c));
      }
  return out;
}

Array conv_tail(const Array& x, int64_t W) {
  const int64_t rows = std::min(W - 1, x[0]);
  Array tail({rows, x[1]});
  for (int64_t i = 0; i < rows; ++i) tail.set_row(x.row(x[0] - rows + i), i);
  return tail;
}

Array window_after(const Array& window, const Array& tail) {
  const int64_t rows = window[0], kept = rows - tail[0];
  Array after(window.shape);
  for (int64_t i = 0; i < rows; ++i)
    after.set_row(i < kept ? window.row(i + tail[0]) : tail.row(i - kept), i);
  return after;
}

}  // namespace hypic::reference
