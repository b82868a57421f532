// The launches of chunked linear attention, for the files of its instances.
#pragma once

#include "kernels/common/scratch.cuh"
#include "kernels/linear_attention/chunked_prepare.cuh"
#include "kernels/linear_attention/chunked_step.cuh"
#include "kernels/linear_attention/chunked_walk.cuh"

namespace hypic::cuda {

template <bool kDelta, int kDk>
void chunked_cell(ChunkedArgs p, int Hk, const TableUpload& table, int sms, cudaStream_t stream) {
  const auto allow = [](auto kernel, int bytes, const char* name) {
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes), name);
  };
  const int chunks = table.chunk_count();
  const int64_t row_heads = chunks > 0 ? p.rows * p.Hv : 0;
  const Scratch M(row_heads * kChunkRows * sizeof(__nv_bfloat16), stream),
      Z(kDelta ? row_heads * kDk * sizeof(__nv_bfloat16) : 0, stream), gates(row_heads * sizeof(float4), stream);
  p.M = M.as<__nv_bfloat16>();
  p.Z = Z.as<__nv_bfloat16>();
  p.gates = gates.as<float4>();
  if (chunks > 0) {
    const int heads = plan_prepare_heads(sms, chunks, Hk, p.Hv);
    constexpr int kBytes = PrepareShared<kDelta, kDk>::kBytes;
    allow(prepare_kernel<kDelta, kDk>, kBytes, "linear_attention, prepare");
    prepare_kernel<kDelta, kDk><<<dim3(static_cast<unsigned>(chunks), static_cast<unsigned>(p.Hv / heads)),
                                  kPrepareThreads, kBytes, stream>>>(p, heads);
    check_launch("linear_attention, prepare");
  }
  for (const Level& level : table.levels()) {
    const WalkPlan plan =
        plan_walk(sms, level.single_first - level.first, level.op_last - level.op_first, p.Hv, kDk, p.dv, kDelta);
    if (plan.blocks > 0) {
      const int bytes = kWalkStages * WalkStage<kDelta, kDk>::bytes(plan.columns);
      allow(walk_kernel<kDelta, kDk>, bytes, "linear_attention, walk");
      walk_kernel<kDelta, kDk><<<plan.blocks, walk_threads(plan.columns), bytes, stream>>>(
          p,
          {level.first, level.op_first, plan.chain_works, plan.works(), plan.columns, plan.v_parts, plan.t_parts});
      check_launch("linear_attention, walk");
    }
    if (level.last > level.single_first) {
      const dim3 blocks(static_cast<unsigned>((level.last - level.single_first) * p.Hv),
                        static_cast<unsigned>(ceil_div(p.dv, kStepColumns)));
      step_kernel<kDelta, kDk><<<blocks, kStepThreads, 0, stream>>>(p, level.single_first);
      check_launch("linear_attention, step");
    }
  }
}

}  // namespace hypic::cuda
