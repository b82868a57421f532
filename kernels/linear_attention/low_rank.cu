#include "kernels/linear_attention/low_rank.cuh"

#include "kernels/linear_attention/low_rank_args.cuh"

namespace hypic::cuda {
namespace {

bool aligned(const Tensor& t) { return reinterpret_cast<uintptr_t>(t.data) % 16 == 0; }

// Rows that 16-byte pieces of so many elements make.
bool pieces(const Tensor& t, DType dtype, int64_t elements) {
  return t.dtype == dtype && t.rank == 3 && t.stride[2] == 1 && aligned(t) &&
         (t[0] <= 1 || t.stride[0] % elements == 0) && (t[1] <= 1 || t.stride[1] % elements == 0);
}

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
  const auto bf16 = [](const Tensor& t) { return pieces(t, DType::bf16, 8); };
  const bool cell = a.update == Update::delta_before
                        ? a.decay == Decay::diagonal || a.decay == Decay::scalar
                        : a.update == Update::delta && a.decay == Decay::diagonal && a.b;
  return cell && a.readout == Readout::plain && a.side == Side::key && !a.skip && bf16(a.q) && bf16(a.k) &&
         bf16(a.v) && bf16(a.o) && (!a.a || bf16(a.a)) && (!a.b || bf16(a.b)) &&
         (a.decay == Decay::scalar || pieces(a.g, DType::f32, 4)) && aligned(a.state) && aligned(a.operators.T) &&
         aligned(a.operators.U) && (a.k[2] == 64 || a.k[2] == 128) && a.v[2] % 16 == 0 &&
         (a.rotary_dim == 0 || !has_jumps(table));
}

void low_rank(const LinearAttentionArgs& a, const TableUpload& table, int sms, cudaStream_t stream) {
  HYPIC_CHECK(a.k[0] == table.rows(), "rows ", a.k[0], ", in the table ", table.rows());
  HYPIC_CHECK(a.k[1] > 0 && a.v[1] % a.k[1] == 0, "value heads ", a.v[1], ", key heads ", a.k[1]);
  const auto pool = [](const Tensor& t) {
    HYPIC_CHECK(!t || (t.dtype == DType::f32 && t.contiguous()), t.shape_string());
    return static_cast<float*>(t.data);
  };
  LowRankArgs p{};
  p.q = view<__nv_bfloat16>(a.q);
  p.k = view<__nv_bfloat16>(a.k);
  p.v = view<__nv_bfloat16>(a.v);
  p.o = view<__nv_bfloat16>(a.o);
  p.a = view<__nv_bfloat16>(a.a);
  p.b = view<__nv_bfloat16>(a.b);
  p.g = view<float>(a.g);
  p.beta = view<float>(a.beta);
  p.state = pool(a.state);
  p.T = pool(a.operators.T);
  p.U = pool(a.operators.U);
  p.Hv = static_cast<int>(a.v[1]);
  p.group = static_cast<int>(a.v[1] / a.k[1]);
  p.dv = static_cast<int>(a.v[2]);
  p.scale = static_cast<float>(a.scale);
  p.before = a.update == Update::delta_before;
  p.scalar = a.decay == Decay::scalar;
  p.rows = a.k[0];
  p.table = table.device();
  if (a.k[2] == 64) return low_rank_cell<64>(p, table, sms, stream);
  HYPIC_CHECK(a.k[2] == 128, "no low-rank kernel for d_k = ", a.k[2]);
  low_rank_cell<128>(p, table, sms, stream);
}

}  // namespace hypic::cuda
