#include "kernels/linear_attention/linear_attention.cuh"

#include "kernels/common/cuda.cuh"

namespace hypic::cuda {

#define HYPIC_CELLS(CELL)                                                                        \
  CELL(none, add) CELL(scalar, add) CELL(diagonal, add) CELL(elementwise, add) CELL(none, delta) \
  CELL(scalar, delta) CELL(diagonal, delta) CELL(scalar, delta_before) CELL(diagonal, delta_before)

#define HYPIC_CELL(decay, update)                                                        \
  extern template void plain_cell<Decay::decay, Update::update>(const LinearAttentionArgs&, \
                                                                const TableUpload&, cudaStream_t);
HYPIC_CELLS(HYPIC_CELL)
#undef HYPIC_CELL

void linear_attention(const LinearAttentionArgs& a, const TableUpload& table, cudaStream_t stream) {
  HYPIC_CHECK(a.k[0] == table.rows(), "rows ", a.k[0], ", in the table ", table.rows());
  HYPIC_CHECK(a.k[1] > 0 && a.v[1] % a.k[1] == 0, "value heads ", a.v[1], ", key heads ", a.k[1]);
#define HYPIC_CELL(d, u) \
  if (a.decay == Decay::d && a.update == Update::u) return plain_cell<Decay::d, Update::u>(a, table, stream);
  HYPIC_CELLS(HYPIC_CELL)
#undef HYPIC_CELL
  HYPIC_CHECK(false, "no kernel for the cell ", name_of(a.decay), " × ", name_of(a.update));
}

}  // namespace hypic::cuda
