#include "core/backend.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <type_traits>

#include "core/check.h"

namespace hypic {
namespace {

constexpr std::align_val_t kHostAlignment{64};

}  // namespace

void* Backend::allocate_host(size_t bytes) {
  void* memory = ::operator new(bytes, kHostAlignment, std::nothrow);
  if (!memory) throw OutOfMemory(str("out of host memory: ", bytes, " bytes"));
  return memory;
}
void Backend::release_host(void* memory) noexcept { ::operator delete(memory, kHostAlignment); }
void Backend::upload_async(const Tensor& to, const void* from) { upload(to, from); }
void Backend::download_async(void* to, const Tensor& from) { download(to, from); }
std::unique_ptr<Event> Backend::record() { return nullptr; }

std::unique_ptr<SharedMemory> Backend::share(int64_t) { return nullptr; }
std::unique_ptr<SharedMemory> Backend::open_shared(const std::string&) {
  fail("backend ", name(), " opens no memory of other processes");
}
std::unique_ptr<Copies> Backend::copies() { return nullptr; }
void Backend::copy_bytes(std::span<const BytesCopy> pieces) {
  for (const BytesCopy& piece : pieces)
    copy(Tensor(piece.to, DType::u8, {piece.bytes}), Tensor(const_cast<void*>(piece.from), DType::u8, {piece.bytes}));
}
void Backend::wait_for(Event& event) { event.wait(); }

void Backend::replay(const std::string&, const std::function<void()>& enqueue) { enqueue(); }

void Backend::profile(bool) {}

void Backend::add_rms_norm(const AddRmsNormArgs& a) {
  if (a.update) add({.x = a.residual, .y = a.update, .beta = a.scale});
  rms_norm({a.residual, a.weight, a.plus_one, a.eps, a.out});
}

void Backend::add_gated(const AddGatedArgs& a) {
  gate_mul({a.y, a.gate, a.activation, a.y});
  add({a.x, a.y});
}

void Backend::conv_gates(const ConvGatesArgs& a) {
  causal_conv(a.conv);
  const int64_t rows = a.conv.out[0], keys = a.key_heads * a.key_dim;
  const Tensor q = a.conv.out.columns(0, keys), k = a.conv.out.columns(keys, 2 * keys);
  if (a.q) l2_norm({q.reshape({rows, a.key_heads, a.key_dim}), a.l2_eps, a.q});
  if (a.k) l2_norm({k.reshape({rows, a.key_heads, a.key_dim}), a.l2_eps, a.k});
  decay_gate(a.decay);
  if (a.beta.x) sigmoid(a.beta);
}

void Backend::qk_norm_append(const QkNormAppendArgs& a) {
  const auto norm = [&](const Tensor& x, const Tensor& weight, const Tensor& out) {
    if (!weight) {
      if (out.data != x.data) copy(out, x);
      return;
    }
    const int64_t width = weight[0];
    const auto vectors = [&](const Tensor& t) { return t.reshape({t[0], t[1] * t[2] / width, width}); };
    if (width == x[2])  // heads may be strided
      rms_norm({x, weight, a.plus_one, a.eps, out});
    else
      rms_norm({vectors(x), weight, a.plus_one, a.eps, vectors(out)});
  };
  norm(a.q, a.q_weight, a.q_out);
  norm(a.k, a.k_weight, a.k_out);
  if (a.rotary_dim > 0) rope({a.k_out, a.positions, a.rotary_dim, a.theta, a.k_out});
  append_kv({a.k_out, a.v, a.k_pages, a.v_pages});
}

void Backend::gated_norm(const GatedNormArgs& a) {
  Tensor x = a.x;
  if (a.gate_first) {
    gate_mul({x, a.gate, a.activation, a.out});
    x = a.out;
  }
  if (a.weight) {
    rms_norm({x, a.weight, false, a.eps, a.out});
    x = a.out;
  }
  if (!a.gate_first) gate_mul({x, a.gate, a.activation, a.out});
}

void Backend::gated_linear_attention(const GatedLinearAttentionArgs& a) {
  conv_gates(a.inputs);
  linear_attention(a.attention);
  gated_norm(a.norm);
}

void Backend::shared_expert(const SharedExpertArgs& a) {
  matmul({.x = a.x, .w = a.in, .out = a.projected});
  gate_mul({a.gate ? a.up : Tensor(), a.gate ? a.gate : a.up, a.activation, a.up});
  matmul({.x = a.up, .w = a.down, .out = a.part});
  if (a.row_gate)
    add_gated({a.out, a.part, a.row_gate, Activation::sigmoid});
  else
    add({a.out, a.part});
}

void Backend::moe(const MoeArgs& a) {
  matmul({.x = a.experts.x, .w = a.router, .out = a.route.logits});
  route(a.route);
  experts(a.experts);
  if (a.shared.in) shared_expert(a.shared);
}

std::vector<double> to_doubles(Backend& backend, const Tensor& tensor) {
  Buffer dense;
  Tensor from = tensor;
  if (!tensor.contiguous()) {
    dense = Buffer(backend, tensor.dtype, std::span(tensor.shape.data(), tensor.rank));
    backend.copy(dense, tensor);
    from = dense;
  }
  std::vector<char> bytes(from.bytes());
  backend.download(bytes.data(), from);
  return visit_float(from.dtype, [&](auto zero) {
    using T = decltype(zero);
    std::vector<double> out(from.size());
    for (int64_t i = 0; i < from.size(); ++i) {
      T x;
      std::memcpy(&x, bytes.data() + i * sizeof(T), sizeof(T));
      if constexpr (std::is_same_v<T, double>)
        out[i] = x;
      else
        out[i] = static_cast<float>(x);
    }
    return out;
  });
}

Buffer::Buffer(Backend& backend, DType dtype, std::span<const int64_t> shape)
    : backend_(&backend), tensor_(nullptr, dtype, shape) {
  tensor_.data = backend.allocate(std::max<int64_t>(tensor_.bytes(), 1));
}

}  // namespace hypic
