#include "core/backend.h"

#include <algorithm>

namespace hypic {

void Backend::add_rms_norm(const AddRmsNormArgs& a) {
  if (a.update) add({a.residual, a.update});
  rms_norm({a.residual, a.weight, a.plus_one, a.eps, a.out});
}

void Backend::conv_gates(const ConvGatesArgs& a) {
  causal_conv(a.conv);
  const int64_t rows = a.conv.out[0], keys = a.key_heads * a.key_dim;
  const Tensor q = a.conv.out.columns(0, keys), k = a.conv.out.columns(keys, 2 * keys);
  l2_norm({q.reshape({rows, a.key_heads, a.key_dim}), a.l2_eps, a.q});
  l2_norm({k.reshape({rows, a.key_heads, a.key_dim}), a.l2_eps, a.k});
  decay_gate({a.alpha, a.A_log, a.dt_bias, a.g});
  sigmoid({a.beta_logit, a.beta});
}

void Backend::qk_norm_append(const QkNormAppendArgs& a) {
  rms_norm({a.q, a.q_weight, a.plus_one, a.eps, a.q_out});
  rms_norm({a.k, a.k_weight, a.plus_one, a.eps, a.k_out});
  rope({a.k_out, a.positions, a.rotary_dim, a.theta, a.k_out});
  append_kv({a.k_out, a.v, a.k_pages, a.v_pages});
}

void Backend::gated_norm(const GatedNormArgs& a) {
  rms_norm({a.x, a.weight, false, a.eps, a.out});
  gate_mul({a.out, a.gate, a.activation, a.out});
}

Buffer::Buffer(Backend& backend, DType dtype, std::span<const int64_t> shape)
    : backend_(&backend), tensor_(nullptr, dtype, shape) {
  tensor_.data = backend.allocate(std::max<int64_t>(tensor_.bytes(), 1));
}

}  // namespace hypic
