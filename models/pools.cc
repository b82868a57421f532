#include "models/pools.h"

namespace hypic {

TransferOperator LinearPool::operators() const { return {kind, log_scale, T, U}; }

Pools::Pools(Backend& backend, const ModelSpec& spec, const PoolSizes& sizes)
    : sizes(sizes), linear(spec.layer_count()), attention(spec.layer_count()) {
  for (int l = 0; l < spec.layer_count(); ++l) {
    const DType compute = backend.compute_dtype(), state = backend.state_dtype();
    if (spec.layers[l].attention) {
      const AttentionSpec& a = spec.attention;
      const int64_t heads = a.latent() ? 1 : a.kv_heads;
      attention[l].k = Buffer(backend, compute, {sizes.pages, sizes.page_size, heads, a.key_width()});
      if (!a.latent())
        attention[l].v = Buffer(backend, compute, {sizes.pages, sizes.page_size, heads, a.head_dim});
    }
    if (!spec.layers[l].linear) continue;
    const LinearSpec& a = spec.linear;
    const FamilyTraits& family = traits(a.family);
    const int64_t H = a.value_heads, dk = a.key_dim, dv = a.value_dim, before = a.conv_width - 1;
    LinearPool& pool = linear[l];
    pool.kind = operator_kind(family.decay, family.update);
    pool.state = Buffer(backend, state, {sizes.state_slots, H, dk, dv});
    pool.window = Buffer(backend, compute, {sizes.state_slots, before, a.conv_channels()});
    pool.tail = Buffer(backend, compute, {sizes.operator_slots, before, a.conv_channels()});
    pool.U = Buffer(backend, state, {sizes.operator_slots, H, dk, dv});
    if (has_log_scale(family.decay, family.update))
      pool.log_scale = Buffer(backend, state, {sizes.operator_slots, H});
    switch (pool.kind) {
      case OperatorKind::identity:
      case OperatorKind::scalar:
        break;
      case OperatorKind::diagonal:
        pool.T = Buffer(backend, state, {sizes.operator_slots, H, dk});
        break;
      case OperatorKind::elementwise:
        pool.T = Buffer(backend, state, {sizes.operator_slots, H, dk, dv});
        break;
      case OperatorKind::dense:
        pool.T = Buffer(backend, state, {sizes.operator_slots, H, dk, dk});
        break;
    }
  }
}

namespace {

int64_t slot_bytes(const Tensor& pool) { return pool && pool[0] > 0 ? pool.bytes() / pool[0] : 0; }

}  // namespace

int64_t Pools::operator_bytes() const {
  int64_t bytes = 0;
  for (const LinearPool& pool : linear)
    bytes += slot_bytes(pool.T) + slot_bytes(pool.U) + slot_bytes(pool.log_scale) +
             slot_bytes(pool.tail);
  return bytes;
}

int64_t Pools::state_bytes() const {
  int64_t bytes = 0;
  for (const LinearPool& pool : linear) bytes += slot_bytes(pool.state) + slot_bytes(pool.window);
  return bytes;
}

int64_t Pools::page_bytes() const {
  int64_t bytes = 0;
  for (const AttentionPool& pool : attention) bytes += slot_bytes(pool.k) + slot_bytes(pool.v);
  return bytes;
}

}  // namespace hypic
