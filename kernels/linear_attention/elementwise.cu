#include "kernels/linear_attention/elementwise.cuh"
#include "kernels/linear_attention/elementwise_step.cuh"
#include "kernels/linear_attention/elementwise_walk.cuh"
#include "kernels/linear_attention/operands.cuh"

namespace hypic::cuda {
namespace {

template <class T>
void run(const LinearAttentionArgs& a, const TableUpload& table, int sms, cudaStream_t stream) {
  const EntryArgs<T> p{.q = view<T>(a.q),
                       .k = view<T>(a.k),
                       .v = view<T>(a.v),
                       .o = view<T>(a.o),
                       .g = view<float>(a.g),
                       .beta = view<float>(a.beta),
                       .A = pool(a.A),
                       .skip = pool(a.skip),
                       .state = pool(a.state),
                       .T = pool(a.operators.T),
                       .U = pool(a.operators.U),
                       .Hv = static_cast<int>(a.v[1]),
                       .group = static_cast<int>(a.v[1] / a.k[1]),
                       .dk = static_cast<int>(a.k[2]),
                       .dv = static_cast<int>(a.v[2]),
                       .scale = static_cast<float>(a.scale),
                       .table = table.device()};
  const auto walk = [&]<int kKeys>(dim3 blocks, int32_t first) {
    using Shared = EntryShared<kKeys>;
    constexpr int kBytes = sizeof(Shared);
    check(cudaFuncSetAttribute(elementwise_walk_kernel<T, kKeys>, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes),
          "linear_attention, walk");
    elementwise_walk_kernel<T, kKeys><<<blocks, Shared::kThreads, kBytes, stream>>>(p, first);
    check_launch("linear_attention, walk");
  };
  for (const Level& level : table.levels()) {
    const int chains = level.single_first - level.first, rows = level.last - level.single_first;
    if (p.Hv == 0 || p.dv == 0) return;
    if (chains > 0) {
      const EntryPlan plan = plan_entries(sms, chains, p.Hv, p.dv);
      const dim3 blocks(static_cast<unsigned>(chains * p.Hv), static_cast<unsigned>(plan.parts));
      if (plan.keys == 1)
        walk.template operator()<1>(blocks, level.first);
      else
        walk.template operator()<2>(blocks, level.first);
    }
    if (rows > 0)
      launch_next("linear_attention, step", elementwise_step_kernel<T>,
                  dim3(static_cast<unsigned>(rows * p.Hv), static_cast<unsigned>(ceil_div(p.dv, kEntryStepChannels))),
                  dim3(kEntryStepChannels), 0, stream, p, level.single_first);
  }
}

}  // namespace

bool elementwise_takes(const LinearAttentionArgs& a) {
  return a.decay == Decay::elementwise && a.update == Update::add && a.readout == Readout::plain &&
         a.side == Side::key && a.rotary_dim == 0 && !a.a && !a.b && a.k[2] <= kEntryKeys;
}

void elementwise(const LinearAttentionArgs& a, const TableUpload& table, int sms, cudaStream_t stream) {
  HYPIC_CHECK(a.k[0] == table.rows(), "rows ", a.k[0], ", in the table ", table.rows());
  HYPIC_CHECK(a.k[1] > 0 && a.v[1] % a.k[1] == 0, "value heads ", a.v[1], ", key heads ", a.k[1]);
  visit_device(a.k.dtype, [&](auto zero) { run<decltype(zero)>(a, table, sms, stream); });
}

}  // namespace hypic::cuda
