#include "kernels/linear_attention/low_rank.cuh"

#include "kernels/linear_attention/low_rank_args.cuh"
#include "kernels/linear_attention/operands.cuh"

namespace hypic::cuda {
namespace {

bool has_jumps(const TableUpload& table) {
  for (const Level& level : table.levels())
    for (const SpanStage& stage : level.stages)
      if (stage.jumps_last > stage.first) return true;
  return false;
}

}  // namespace

extern template void low_rank_cell<64>(LowRankArgs, const TableUpload&, int, cudaStream_t);
extern template void low_rank_cell<128>(LowRankArgs, const TableUpload&, int, cudaStream_t);

bool low_rank_takes(const LinearAttentionArgs& a, const TableUpload& table) {
  const auto bf16 = [](const Tensor& t) { return rows_in_pieces(t, DType::bf16); };
  const bool cell = a.update == Update::delta_before
                        ? a.decay == Decay::diagonal || a.decay == Decay::scalar
                        : a.update == Update::delta && a.decay == Decay::diagonal && a.b;
  return cell && a.readout == Readout::plain && a.side == Side::key && !a.skip && bf16(a.q) && bf16(a.k) &&
         bf16(a.v) && bf16(a.o) && (!a.a || bf16(a.a)) && (!a.b || bf16(a.b)) &&
         (a.decay == Decay::scalar || rows_in_pieces(a.g, DType::f32)) && aligned(a.state) && aligned(a.operators.T) &&
         aligned(a.operators.U) && (a.k[2] == 64 || a.k[2] == 128) && a.v[2] % 16 == 0 &&
         (a.rotary_dim == 0 || !has_jumps(table));
}

void low_rank(const LinearAttentionArgs& a, const TableUpload& table, int sms, cudaStream_t stream) {
  LowRankArgs p{chunked_args(a, table)};
  p.a = view<__nv_bfloat16>(a.a);
  p.b = view<__nv_bfloat16>(a.b);
  p.before = a.update == Update::delta_before;
  p.scalar = a.decay == Decay::scalar;
  if (a.k[2] == 64) return low_rank_cell<64>(p, table, sms, stream);
  HYPIC_CHECK(a.k[2] == 128, "no low-rank kernel for d_k = ", a.k[2]);
  low_rank_cell<128>(p, table, sms, stream);
}

}  // namespace hypic::cuda
