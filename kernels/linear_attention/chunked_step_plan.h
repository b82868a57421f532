// How single rows of chunked linear attention are laid over a GPU. A pure function of the sizes; no plan changes a bit
// of a result.
#pragma once

namespace hypic::cuda {

// Columns of S that a block takes, 32 or 64. rows: single rows of the level.
int plan_step_columns(int sms, int rows, int heads, int dv);

}  // namespace hypic::cuda
