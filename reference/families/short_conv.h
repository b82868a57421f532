// The causal depthwise convolution before a linear-attention layer, by definition: no activation.
#pragma once

#include "reference/families/array.h"

namespace hypic::reference {

// out_t = Σ_j w[·, j] x_{t−W+1+j}, where the rows before x are `window`; x [T, C], w [C, W], window
// [W−1, C], oldest row first.
Array short_conv(const Array& x, const Array& w, const Array& window);

// What a span of raw rows leaves behind: its last min(W−1, T) rows.
Array conv_tail(const Array& x, int64_t W);

// The window after a span with that tail: the last W−1 rows of the window followed by the tail. A
// span shorter than W−1 leaves older rows in it.
Array window_after(const Array& window, const Array& tail);

}  // namespace hypic::reference
