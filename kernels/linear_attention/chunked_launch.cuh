// The launches of chunked linear attention, for the files of its instances.
#pragma once

#include "kernels/common/launch_next.cuh"
#include "kernels/common/scratch.cuh"
#include "kernels/linear_attention/chunked_diagonal.cuh"
#include "kernels/linear_attention/chunked_diagonal_step.cuh"
#include "kernels/linear_attention/chunked_jumps.cuh"
#include "kernels/linear_attention/chunked_prepare.cuh"
#include "kernels/linear_attention/chunked_prepare_delta.cuh"
#include "kernels/linear_attention/chunked_step.cuh"
#include "kernels/linear_attention/chunked_walk.cuh"

namespace hypic::cuda {

template <class Kernel>
void allow_shared(Kernel kernel, int bytes, const char* name) {
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes), name);
}

template <int kDk>
void launch_prepare_delta(const ChunkedArgs& p, int chunks, int heads, int beside, cudaStream_t stream) {
  const int units = chunks * (p.Hv / heads);
  const auto launch = [&](auto kernel, int blocks, int groups) {
    const int bytes = groups * PrepareDeltaShared<kDk>::kBytes;
    allow_shared(kernel, bytes, "linear_attention, prepare");
    kernel<<<blocks, groups * kPrepareThreads, bytes, stream>>>(p, heads, units);
    check_launch("linear_attention, prepare");
  };
  if (beside > 0)
    launch(prepare_delta_kernel<kDk, kPrepareGroups>,
           std::min(beside, static_cast<int>(ceil_div(units, kPrepareGroups))), kPrepareGroups);
  else
    launch(prepare_delta_kernel<kDk, 1>, units, 1);
}

template <bool kDelta, int kDk, bool kDiagonal>
void launch_jumps(const ChunkedArgs& p, const SpanStage& stage, cudaStream_t stream) {
  const JumpsPlan plan = plan_jumps(stage.jumps_last - stage.first, p.Hv, p.dv, kDelta);
  if (plan.blocks == 0) return;
  constexpr int kBytes = Jumps<kDelta, kDk, kDiagonal>::kBytes;
  allow_shared(jumps_kernel<kDelta, kDk, kDiagonal>, kBytes, "linear_attention, jumps");
  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {static_cast<unsigned>(plan.cluster), 1, 1};
  const cudaLaunchConfig_t config{.gridDim = static_cast<unsigned>(plan.blocks),
                                  .blockDim = Jumps<kDelta, kDk, kDiagonal>::kThreads,
                                  .dynamicSmemBytes = kBytes,
                                  .stream = stream,
                                  .attrs = &cluster,
                                  .numAttrs = 1};
  check(cudaLaunchKernelEx(&config, jumps_kernel<kDelta, kDk, kDiagonal>, p, stage.first, plan.parts),
        "linear_attention, jumps");
}

// Multiprocessors that `prepare` has to itself while `walk` goes along the only chain of a table; else 0, before it.
inline int prepare_beside(const ChunkedArgs& p, int Hk, int dk, const TableUpload& table, int sms) {
  const std::vector<Level>& levels = table.levels();
  if (levels.size() != 1 || levels[0].stages.size() != 1) return 0;
  const SpanStage& stage = levels[0].stages[0];
  if (stage.jumps_last > stage.first || stage.last - stage.first != 1) return 0;
  const WalkPlan walk = plan_walk(sms, 1, levels[0].op_last - levels[0].op_first, p.Hv, dk, p.dv, true);
  return plan_prepare_beside(sms, walk.blocks, table.chunk_count(), Hk, p.Hv);
}

template <bool kDelta, int kDk, bool kDiagonal>
void chunked_cell(ChunkedArgs p, int Hk, const TableUpload& table, int sms, cudaStream_t stream) {
  const int chunks = table.chunk_count();
  const int64_t row_heads = chunks > 0 ? p.rows * p.Hv : 0;
  const Scratch M(row_heads * kChunkRows * sizeof(__nv_bfloat16), stream),
      Z(kDelta || kDiagonal ? row_heads * kDk * sizeof(__nv_bfloat16) : 0, stream),
      gates(kDiagonal ? 0 : row_heads * sizeof(float4), stream),
      K(kDiagonal && kDelta ? row_heads * kDk * sizeof(__nv_bfloat16) : 0, stream),
      Q(kDiagonal ? row_heads * kDk * sizeof(__nv_bfloat16) : 0, stream),
      decays(kDiagonal && chunks > 0
                 ? (decays_slot(table.item_count(), static_cast<int32_t>(p.rows)) + 1) * p.Hv * kDk * sizeof(float)
                 : 0,
             stream);
  int beside = 0;
  if constexpr (kDelta && !kDiagonal) beside = prepare_beside(p, Hk, kDk, table, sms);
  const size_t ready_bytes =
      beside > 0 ? (decays_slot(table.item_count(), static_cast<int32_t>(p.rows)) + 1) * Hk * sizeof(int32_t) : 0;
  const Scratch ready(ready_bytes, stream);
  if (beside > 0) check(cudaMemsetAsync(ready.as<void>(), 0, ready_bytes, stream), "linear_attention, prepare");
  p.ready = ready.as<int32_t>();
  p.M = M.as<__nv_bfloat16>();
  p.Z = Z.as<__nv_bfloat16>();
  p.gates = gates.as<float4>();
  p.K = K.as<__nv_bfloat16>();
  p.Q = Q.as<__nv_bfloat16>();
  p.decays = decays.as<float>();
  ChunkedArgs walked = p;  // with K and Q as `walk` and `jumps` read them
  if constexpr (kDiagonal) {
    walked.k = {kDelta ? p.K : p.Z, int64_t{p.Hv} * kDk, kDk, 1};
    walked.q = {p.Q, int64_t{p.Hv} * kDk, kDk, 1};
    walked.group = 1;
  }
  if (chunks > 0) {
    const auto launch_prepare = [&](auto kernel, int bytes, int heads, auto... args) {
      allow_shared(kernel, bytes, "linear_attention, prepare");
      kernel<<<dim3(static_cast<unsigned>(chunks), static_cast<unsigned>(p.Hv / heads)), kPrepareThreads, bytes,
               stream>>>(p, args...);
      check_launch("linear_attention, prepare");
    };
    if constexpr (kDiagonal) {
      launch_prepare(prepare_diagonal_kernel<kDelta, kDk>, DiagonalShared<kDelta, kDk>::kBytes, 1);
    } else if constexpr (kDelta) {
      launch_prepare_delta<kDk>(p, chunks, beside > 0 ? p.group : plan_prepare_heads(sms, chunks, Hk, p.Hv), beside,
                                stream);
    } else {
      const int heads = plan_prepare_heads(sms, chunks, Hk, p.Hv);
      launch_prepare(prepare_kernel<kDk>, PrepareShared<kDk>::kBytes, heads, heads);
    }
  }
  const auto launch_walk = [&](const SpanStage& stage, int32_t op_first, int32_t op_last) {
    const int32_t chains = stage.last - stage.jumps_last, ops = op_last - op_first;
    const WalkPlan plan = plan_walk(sms, chains, ops, p.Hv, kDk, p.dv, kDelta);
    if (plan.blocks == 0) return;
    const WalkGrid grid{stage.jumps_last, op_first, chains, ops, plan.works(), plan.v_parts, plan.t_parts};
    const auto launch = [&](auto kernel, int threads, int bytes) {
      allow_shared(kernel, bytes, "linear_attention, walk");
      if (beside > 0)
        return launch_next("linear_attention, walk", kernel, dim3(static_cast<unsigned>(plan.blocks)),
                           dim3(static_cast<unsigned>(threads)), bytes, stream, walked, grid);
      kernel<<<plan.blocks, threads, bytes, stream>>>(walked, grid);
      check_launch("linear_attention, walk");
    };
    if (plan.columns == 64)
      launch(walk_kernel<kDelta, kDk, 64, kDiagonal>, WalkShared<kDelta, kDk, 64>::kThreads,
             WalkShared<kDelta, kDk, 64>::kBytes);
    else
      launch(walk_kernel<kDelta, kDk, 128, kDiagonal>, WalkShared<kDelta, kDk, 128>::kThreads,
             WalkShared<kDelta, kDk, 128>::kBytes);
  };
  for (const Level& level : table.levels()) {
    for (size_t i = 0; i < level.stages.size(); ++i) {
      const SpanStage& stage = level.stages[i];
      launch_jumps<kDelta, kDk, kDiagonal>(walked, stage, stream);
      launch_walk(stage, i == 0 ? level.op_first : level.op_last, level.op_last);
    }
    if (level.last > level.single_first) {
      const int32_t rows = level.last - level.single_first;
      const auto launch = [&](auto kernel, int columns) {
        const dim3 blocks(static_cast<unsigned>(rows * p.Hv), static_cast<unsigned>(ceil_div(p.dv, columns)));
        launch_next("linear_attention, step", kernel, blocks, dim3(kStepThreads), 0, stream, p, level.single_first);
      };
      if constexpr (kDiagonal)
        launch(diagonal_step_kernel<kDelta, kDk>, kStepColumns);
      else if (p.dv >= 128)  // longer pieces of a row, unless a head would be one block
        launch(step_kernel<kDelta, kDk, 64>, 64);
      else
        launch(step_kernel<kDelta, kDk, 32>, 32);
    }
  }
}

}  // namespace hypic::cuda
