// Softmax attention of many rows in bf16 at Hopper's speed: what attention.cuh computes, for the shapes that it takes.
#pragma once

#include "core/backend.h"
#include "kernels/common/device_table.cuh"
#include "kernels/ops/attention_plan.h"

namespace hypic::cuda {

// What attention_mma takes, where a page holds a multiple of 8 tokens.
bool attention_wgmma_takes(const AttentionArgs& args, const TableUpload& table);
// It takes them and has rows enough to be faster than attention_mma.
bool attention_wgmma_suits(const AttentionArgs& args, const TableUpload& table);
// sms: multiprocessors of the device. Any table whose rows make the tiles of the plan may replace the planned one,
// as in a captured graph: the plan's lengths decide about speed only.
void attention_wgmma(const AttentionArgs& args, const TableUpload& table, int sms, cudaStream_t stream);
// As planned by the caller.
void attention_wgmma_by(const AttentionWgmmaPlan& plan, const AttentionArgs& args, const TableUpload& table,
                        cudaStream_t stream);

}  // namespace hypic::cuda
