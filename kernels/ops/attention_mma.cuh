// Softmax attention in bf16 on tensor cores: what attention.cuh computes, for the shapes that it takes.
#pragma once

#include "core/backend.h"
#include "kernels/common/device_table.cuh"
#include "kernels/ops/attention_plan.h"

namespace hypic::cuda {

// bf16, D = Dv of 64, 128 or 256, rotary dims a multiple of 16, rows of 16-byte pieces, positions that the table of
// angles reaches.
bool attention_mma_takes(const AttentionArgs& args, const TableUpload& table);
// sms: multiprocessors of the device. Any table whose rows make the tiles of the plan may replace the planned one,
// as in a captured graph: the plan's lengths decide about speed only.
void attention_mma(const AttentionArgs& args, const TableUpload& table, int sms, cudaStream_t stream);
// As planned by the caller.
void attention_mma_by(const AttentionPlan& plan, const AttentionArgs& args, const TableUpload& table,
                      cudaStream_t stream);

}  // namespace hypic::cuda
