// The launches of low_rank.cuh, for the files of its instances.
#pragma once

#include "kernels/common/scratch.cuh"
#include "kernels/linear_attention/low_rank_prepare.cuh"
#include "kernels/linear_attention/low_rank_step.cuh"
#include "kernels/linear_attention/low_rank_walk.cuh"

namespace hypic::cuda {

template <int kDk>
void low_rank_cell(LowRankArgs p, const TableUpload& table, int sms, cudaStream_t stream) {
  const auto launch = [&](const char* name, auto kernel, dim3 blocks, int threads, int bytes, auto... args) {
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes), name);
    kernel<<<blocks, threads, bytes, stream>>>(p, args...);
    check_launch(name);
  };
  p.chunks = table.chunk_count();
  const Scratch tiles(static_cast<size_t>(p.chunks) * p.Hv * LowRankTile<kDk>::kBytes, stream);
  p.tiles = tiles.as<char>();
  if (p.chunks > 0)
    launch("linear_attention, prepare", p.a ? prepare_low_rank_kernel<kDk, false> : prepare_low_rank_kernel<kDk, true>,
           dim3(static_cast<unsigned>(p.chunks), static_cast<unsigned>(p.Hv)), kLowRankThreads,
           LowRankShared<kDk>::kBytes);
  for (const Level& level : table.levels()) {
    for (size_t i = 0; i < level.stages.size(); ++i) {
      const SpanStage& stage = level.stages[i];
      const int32_t op_first = i == 0 ? level.op_first : level.op_last;
      const int32_t chains = stage.last - stage.first, ops = level.op_last - op_first;
      const WalkPlan plan = plan_walk(sms, chains, ops, p.Hv, kDk, p.dv, true);
      if (plan.blocks == 0) continue;
      const WalkGrid grid{stage.first, op_first, chains, ops, plan.works(), plan.v_parts, plan.t_parts};
      const auto walk = [&](auto kernel, int threads, int bytes) {
        launch("linear_attention, walk", kernel, dim3(static_cast<unsigned>(plan.blocks)), threads, bytes, grid);
      };
      if (plan.columns == 64)
        walk(walk_low_rank_kernel<kDk, 64>, LowRankRing<kDk, 64>::kThreads, LowRankRing<kDk, 64>::kBytes);
      else
        walk(walk_low_rank_kernel<kDk, 128>, LowRankRing<kDk, 128>::kThreads, LowRankRing<kDk, 128>::kBytes);
    }
    if (level.last > level.single_first) {
      const dim3 blocks(static_cast<unsigned>((level.last - level.single_first) * p.Hv),
                        static_cast<unsigned>(ceil_div(p.dv, kStepColumns)));
      launch_next("linear_attention, step", step_low_rank_kernel<kDk>, blocks, dim3(kStepThreads), 0, stream, p,
                  level.single_first);
    }
  }
}

}  // namespace hypic::cuda
