#include "kernels/linear_attention/chunked.cuh"
#include "kernels/linear_attention/chunked_args.cuh"
#include "kernels/linear_attention/operands.cuh"

namespace hypic::cuda {

#define HYPIC_CELLS(CELL) CELL(add, 64) CELL(add, 128) CELL(delta, 64) CELL(delta, 128)

#define HYPIC_CELL(update, dk)                                                                                       \
  extern template void chunked_cell<Update::update == Update::delta, dk>(ChunkedArgs, int, const TableUpload&, int,  \
                                                                         cudaStream_t);                              \
  extern template void chunked_cell<Update::update == Update::delta, dk, true>(ChunkedArgs, int, const TableUpload&, \
                                                                               int, cudaStream_t);
HYPIC_CELLS(HYPIC_CELL)
#undef HYPIC_CELL

bool chunked_takes(const LinearAttentionArgs& a) {
  const auto bf16 = [](const Tensor& t) { return rows_in_pieces(t, DType::bf16); };
  return a.readout == Readout::plain && a.side == Side::key &&
         (a.decay == Decay::none || a.decay == Decay::scalar ||
          (a.decay == Decay::diagonal && a.rotary_dim == 0 && rows_in_pieces(a.g, DType::f32))) &&
         (a.update == Update::add || a.update == Update::delta) && !a.a && !a.b && bf16(a.q) && bf16(a.k) &&
         bf16(a.v) && bf16(a.o) && aligned(a.state) && aligned(a.operators.T) && aligned(a.operators.U) &&
         (a.k[2] == 64 || a.k[2] == 128) && a.v[2] % 16 == 0 &&
         (a.rotary_dim == 0 ||
          (a.update == Update::add && (a.rotary_dim == a.k[2] || 2 * a.rotary_dim == a.k[2])));
}

ChunkedArgs chunked_args(const LinearAttentionArgs& a, const TableUpload& table) {
  HYPIC_CHECK(a.k[0] == table.rows(), "rows ", a.k[0], ", in the table ", table.rows());
  HYPIC_CHECK(a.k[1] > 0 && a.v[1] % a.k[1] == 0, "value heads ", a.v[1], ", key heads ", a.k[1]);
  ChunkedArgs p{};
  p.q = view<__nv_bfloat16>(a.q);
  p.k = view<__nv_bfloat16>(a.k);
  p.v = view<__nv_bfloat16>(a.v);
  p.o = view<__nv_bfloat16>(a.o);
  if (a.decay != Decay::none) p.g = view<float>(a.g);
  p.beta = view<float>(a.beta);
  p.skip = pool(a.skip);
  p.state = pool(a.state);
  p.log_scale = pool(a.operators.log_scale);
  p.T = pool(a.operators.T);
  p.U = pool(a.operators.U);
  p.Hv = static_cast<int>(a.v[1]);
  p.group = static_cast<int>(a.v[1] / a.k[1]);
  p.dv = static_cast<int>(a.v[2]);
  p.scale = static_cast<float>(a.scale);
  p.rotations = rotation_table(a.rotary_dim, a.rope_theta);
  p.rows = a.k[0];
  p.table = table.device();
  return p;
}

void chunked(const LinearAttentionArgs& a, const TableUpload& table, int sms, cudaStream_t stream) {
  const ChunkedArgs p = chunked_args(a, table);
#define HYPIC_CELL(update_, dk)                                                                                    \
  if (a.update == Update::update_ && a.k[2] == dk)                                                                 \
    return a.decay == Decay::diagonal                                                                              \
               ? chunked_cell<Update::update_ == Update::delta, dk, true>(p, static_cast<int>(a.k[1]), table, sms, \
                                                                          stream)                                  \
               : chunked_cell<Update::update_ == Update::delta, dk>(p, static_cast<int>(a.k[1]), table, sms, stream);
  HYPIC_CELLS(HYPIC_CELL)
#undef HYPIC_CELL
  HYPIC_CHECK(false, "no chunked kernel for d_k = ", a.k[2]);
}

}  // namespace hypic::cuda
