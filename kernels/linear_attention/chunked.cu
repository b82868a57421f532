#include "kernels/linear_attention/chunked.cuh"
#include "kernels/linear_attention/chunked_args.cuh"

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
  const auto aligned = [](const Tensor& t) { return reinterpret_cast<uintptr_t>(t.data) % 16 == 0; };
  // Rows of bf16 that 16-byte pieces make.
  const auto pieces = [&](const Tensor& t) {
    return t.dtype == DType::bf16 && t.rank == 3 && t.stride[2] == 1 && aligned(t) &&
           (t[0] <= 1 || t.stride[0] % 8 == 0) && (t[1] <= 1 || t.stride[1] % 8 == 0);
  };
  const auto floats = [&](const Tensor& t) {
    return t.rank == 3 && t.stride[2] == 1 && aligned(t) && (t[0] <= 1 || t.stride[0] % 4 == 0) &&
           (t[1] <= 1 || t.stride[1] % 4 == 0);
  };
  return a.readout == Readout::plain && a.side == Side::key &&
         (a.decay == Decay::none || a.decay == Decay::scalar ||
          (a.decay == Decay::diagonal && a.rotary_dim == 0 && floats(a.g))) &&
         (a.update == Update::add || a.update == Update::delta) && !a.a && !a.b && pieces(a.q) && pieces(a.k) &&
         pieces(a.v) && pieces(a.o) && aligned(a.state) && aligned(a.operators.T) && aligned(a.operators.U) &&
         (a.k[2] == 64 || a.k[2] == 128) && a.v[2] % 16 == 0 &&
         (a.rotary_dim == 0 ||
          (a.update == Update::add && (a.rotary_dim == a.k[2] || 2 * a.rotary_dim == a.k[2])));
}

void chunked(const LinearAttentionArgs& a, const TableUpload& table, int sms, cudaStream_t stream) {
  HYPIC_CHECK(a.k[0] == table.rows(), "rows ", a.k[0], ", in the table ", table.rows());
  HYPIC_CHECK(a.k[1] > 0 && a.v[1] % a.k[1] == 0, "value heads ", a.v[1], ", key heads ", a.k[1]);
  const auto pool = [](const Tensor& t) {
    HYPIC_CHECK(!t || (t.dtype == DType::f32 && t.contiguous()), t.shape_string());
    return static_cast<float*>(t.data);
  };
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
