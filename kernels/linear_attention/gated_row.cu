// A block has a chain's row of one value head. Its state is asked for first and stays in registers; convolution, norms
// and gates meet in shared memory. The blocks of a key head are a cluster, for each of them reads the key head's part
// of the window, which one of them then moves on.
#include "kernels/linear_attention/gated_row.cuh"

#include "kernels/common/launch_next.cuh"
#include "kernels/common/mma.cuh"
#include "kernels/common/piece.cuh"
#include "kernels/common/view.cuh"
#include "kernels/linear_attention/chunked.cuh"
#include "kernels/linear_attention/decaying.cuh"
#include "kernels/ops/causal_conv_rows.cuh"
#include "kernels/ops/pieces.cuh"

namespace hypic::cuda {
namespace {

using bf16 = __nv_bfloat16;
using Eight = Piece<bf16>;

constexpr int kDim = 128;                  // of a head
constexpr int kThreads = 1024;
constexpr int kWidth = 4;                  // of the convolution
constexpr int kLanes = kDim / Eight::kSize;  // that have a head's pieces
constexpr int kPart = 256, kPartColumns = 32, kParts = kThreads / kPart;  // threads that have so many columns of S
constexpr int kRows = kDim / 32;           // of S, of a thread: every 32nd
constexpr int kMaxCluster = 8;

struct Args {
  View<bf16> x;                  // [R, q | k | v]
  const bf16 *w, *bias;          // [C, kWidth], [C] or null
  bf16* window;                  // [slots, kWidth − 1, C]
  int64_t C;
  int activation;
  float l2_eps;
  View<bf16> alpha, beta;        // [R, Hv]
  const float *A_log, *dt_bias;  // [Hv]
  float step_min, step_max, beta_scale;
  float* state;                  // [slots, Hv, kDim, kDim]
  float scale;
  View<bf16> z, out;             // [R, Hv, kDim]
  const bf16* norm;              // [kDim], of each head: the next one norm_h after it
  int norm_h;
  float norm_eps;
  int gate;
  int Hk, Hv;
  DeviceTable table;
};

// The same of lanes 8 and 16 apart, summed.
__device__ inline float sum_quads(float x) {
  x += __shfl_xor_sync(0xffffffffu, x, 8);
  return x + __shfl_xor_sync(0xffffffffu, x, 16);
}

__device__ inline void cluster_arrive() { asm volatile("barrier.cluster.arrive.release;" ::: "memory"); }
__device__ inline void cluster_wait() { asm volatile("barrier.cluster.wait.acquire;" ::: "memory"); }

__global__ void __launch_bounds__(kThreads) gated_row_kernel(Args a) {
  __shared__ __align__(16) float qkv[3][kDim];
  __shared__ float sk_of[kParts][kPart / 32][kPartColumns], sq_of[kParts][kPart / 32][kPartColumns];
  __shared__ float qk_of[kRows];
  __shared__ float gates[2];  // log decay, beta
  __shared__ __align__(16) bf16 o_row[kDim];
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;
  const int h = static_cast<int>(blockIdx.x) % a.Hv, group = a.Hv / a.Hk, kh = h / group;

  // Threads 0 … 3 · kLanes convolve a piece each of q, of k and of v.
  const int part_of_qkv = thread / kLanes;
  const bool convolves = part_of_qkv < 3;
  const int64_t channel = (part_of_qkv == 0   ? int64_t{kh} * kDim
                           : part_of_qkv == 1 ? (int64_t{a.Hk} + kh) * kDim
                                              : (2 * int64_t{a.Hk} + h) * kDim) +
                          thread % kLanes * Eight::kSize;
  uint4 w[kWidth] = {}, bias{};  // w: of each channel its kWidth numbers
  if (convolves) {
#pragma unroll
    for (int i = 0; i < kWidth; ++i) w[i] = Eight::bits(a.w + channel * kWidth + i * Eight::kSize);
    if (a.bias) bias = Eight::bits(a.bias + channel);
  }
  follow();

  const Chain chain = a.table.chains[blockIdx.x / a.Hv];
  const int64_t r = chain.row_begin;
  const int part = thread / kPart, quad = lane % 8, row = thread % kPart / 8, column = part * kPartColumns + 4 * quad;
  float* const S = a.state + ((static_cast<int64_t>(chain.state) * a.Hv + h) * kDim + row) * kDim + column;
  float4 s[kRows] = {};
  if (!chain.fresh)
#pragma unroll
    for (int i = 0; i < kRows; ++i) s[i] = *reinterpret_cast<const float4*>(S + 32 * i * kDim);

  uint4 taps[kWidth] = {};
  bf16* const window = a.window + static_cast<int64_t>(chain.state) * (kWidth - 1) * a.C + channel;
  if (convolves) {
    taps[kWidth - 1] = Eight::bits(a.x.row(r) + channel);
    if (!chain.fresh)
#pragma unroll
      for (int j = 0; j < kWidth - 1; ++j) taps[j] = Eight::bits(window + j * a.C);
  }
  const bool norms = warp == 2;  // its first lanes have the head's z, and its norm in the end
  const int at = lane % kLanes * Eight::kSize;
  uint4 z{};
  if (norms) z = Eight::bits(a.z.row(r, h) + at);
  if (warp < 2) {
    const Eight weights[kWidth] = {Eight(w[0]), Eight(w[1]), Eight(w[2]), Eight(w[3])};
    Eight sum(bias);
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      const Eight tap(taps[j]);
#pragma unroll
      for (int i = 0; i < Eight::kSize; ++i) {
        const int n = i * kWidth + j;
        sum.at[i] += weights[n / Eight::kSize].at[n % Eight::kSize] * tap.at[i];
      }
    }
    activate_all(sum, a.activation);
    if (warp == 0) {  // q and k
      float total = sum.squares();
      for (int lanes = kLanes / 2; lanes > 0; lanes /= 2) total += __shfl_xor_sync(0xffffffffu, total, lanes);
      const float factor = rsqrtf(total + a.l2_eps);
#pragma unroll
      for (float& y : sum.at) y *= factor;
    }
    if (convolves) {
      const Eight rounded(sum.rounded());
      float* const to = qkv[part_of_qkv] + at;
#pragma unroll
      for (int i = 0; i < Eight::kSize; ++i) to[i] = rounded.at[i];
    }
  } else if (warp == 3 && lane < 2) {
    if (lane == 0)
      gates[0] = -expf(a.A_log[h]) * decay_step(load(a.alpha.row(r) + h) + a.dt_bias[h], a.step_min, a.step_max);
    else
      gates[1] = a.beta_scale * activate(load(a.beta.row(r) + h), static_cast<int>(Activation::sigmoid));
  }
  if (group > 1) cluster_arrive();  // this block has read the window
  __syncthreads();

  // What chunked_step.cuh does.
  float k[kRows], q[kRows];
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    q[i] = qkv[0][32 * i + row];
    k[i] = qkv[1][32 * i + row];
  }
  const float gate = gates[0], beta = gates[1];
  const float4 v = *reinterpret_cast<const float4*>(&qkv[2][column]);
  if (thread < kDim) {
    const float qk = warp_sum(qkv[0][thread] * qkv[1][thread]);
    if (lane == 0) qk_of[warp] = qk;
  }
  float sk[4] = {}, sq[4] = {};
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    const float x[4] = {s[i].x, s[i].y, s[i].z, s[i].w};
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      sk[c] += k[i] * x[c];
      sq[c] += q[i] * x[c];
    }
  }
  const int part_warp = warp % (kPart / 32);
#pragma unroll
  for (int c = 0; c < 4; ++c) {
    sk[c] = sum_quads(sk[c]);
    sq[c] = sum_quads(sq[c]);
  }
  if (lane < 8) {
    *reinterpret_cast<float4*>(&sk_of[part][part_warp][4 * quad]) = {sk[0], sk[1], sk[2], sk[3]};
    *reinterpret_cast<float4*>(&sq_of[part][part_warp][4 * quad]) = {sq[0], sq[1], sq[2], sq[3]};
  }
  __syncthreads();
  float4 all_sk{}, all_sq{};
#pragma unroll
  for (int i = 0; i < kPart / 32; ++i) {
    const float4 x = *reinterpret_cast<const float4*>(&sk_of[part][i][4 * quad]);
    const float4 y = *reinterpret_cast<const float4*>(&sq_of[part][i][4 * quad]);
    all_sk = {all_sk.x + x.x, all_sk.y + x.y, all_sk.z + x.z, all_sk.w + x.w};
    all_sq = {all_sq.x + y.x, all_sq.y + y.y, all_sq.z + y.z, all_sq.w + y.w};
  }
  float qk = 0;
#pragma unroll
  for (int i = 0; i < kRows; ++i) qk += qk_of[i];
  const float decayed = expf(gate);
  const Decaying decay(gate);
  const float4 d = {beta * (v.x + -decayed * all_sk.x), beta * (v.y + -decayed * all_sk.y),
                    beta * (v.z + -decayed * all_sk.z), beta * (v.w + -decayed * all_sk.w)};
  if (row == 0) {
    const float4 o = {a.scale * (decayed * all_sq.x + qk * d.x), a.scale * (decayed * all_sq.y + qk * d.y),
                      a.scale * (decayed * all_sq.z + qk * d.z), a.scale * (decayed * all_sq.w + qk * d.w)};
    *reinterpret_cast<uint2*>(o_row + column) = {pack_bf16(o.x, o.y), pack_bf16(o.z, o.w)};
  }
#pragma unroll
  for (int i = 0; i < kRows; ++i)
    *reinterpret_cast<float4*>(S + 32 * i * kDim) = {decay(s[i].x, k[i] * d.x), decay(s[i].y, k[i] * d.y),
                                                     decay(s[i].z, k[i] * d.z), decay(s[i].w, k[i] * d.w)};
  __syncthreads();

  if (norms) {
    Eight p(Eight::bits(o_row + at)), g(z);
    activate_all(g, a.gate);
    const float factor = rsqrtf(lanes_sum(p.squares(), kLanes) / kDim + a.norm_eps);
    const Eight weight = Eight::load(a.norm + h * a.norm_h + at);
#pragma unroll
    for (int i = 0; i < Eight::kSize; ++i) p.at[i] *= factor * weight.at[i] * g.at[i];
    if (lane < kLanes) p.store(a.out.row(r, h) + at);
  }
  if (group > 1) cluster_wait();
  if (convolves && (part_of_qkv == 2 || h % group == 0))
#pragma unroll
    for (int j = 0; j < kWidth - 1; ++j) *reinterpret_cast<uint4*>(window + j * a.C) = taps[j + 1];
}

}  // namespace

bool gated_row_takes(const GatedLinearAttentionArgs& a, const TableUpload& table, int sms) {
  const ConvGatesArgs& in = a.inputs;
  const LinearAttentionArgs& l = a.attention;
  const GatedNormArgs& n = a.norm;
  if (table.levels().size() != 1 || table.levels()[0].single_first != table.levels()[0].first ||
      l.decay != Decay::scalar || l.update != Update::delta || l.skip || !l.beta || in.decay.step || !in.beta.x ||
      !in.q || n.gate_first || in.conv.w[1] != kWidth || in.decay.x.rank != 2 || l.rotary_dim != 0)
    return false;
  const int64_t R = table.rows(), Hk = l.k[1], Hv = l.v[1];
  const auto one = [](const Tensor& x, const Tensor& y) { return x.data == y.data && x.shape == y.shape; };
  const auto logits = [&](const Tensor& t) { return t.rank == 2 && t.dtype == DType::bf16 && t.stride[1] == 1; };
  return l.k[2] == kDim && l.v[2] == kDim && Hk > 0 && Hv % Hk == 0 && Hv / Hk <= kMaxCluster && R * Hv <= sms &&
         in.conv.x.dtype == DType::bf16 && in.conv.x[1] == (2 * Hk + Hv) * kDim && in.key_heads == Hk &&
         in.key_dim == kDim && one(in.q, l.q) && one(in.k, l.k) && one(in.decay.out, l.g) && one(in.beta.out, l.beta) &&
         one(l.o, n.x) && logits(in.decay.x) && logits(in.beta.x) && conv_gates_rows_takes(in) &&
         chunked_takes(l) && gated_norm_pieces_takes(n);
}

void gated_row(const GatedLinearAttentionArgs& a, const TableUpload& table, cudaStream_t stream) {
  const ConvGatesArgs& in = a.inputs;
  const LinearAttentionArgs& l = a.attention;
  const int Hk = static_cast<int>(l.k[1]), Hv = static_cast<int>(l.v[1]);
  HYPIC_CHECK(in.conv.x[0] == table.rows() && in.conv.x.data != a.norm.out.data);
  Shapes("gated_row").bind(in.decay.x, "decay", {"R", "H"}).bind(in.beta.x, "beta", {"R", "H"})
      .bind(in.decay.A_log, "A_log", {"H"}).bind(in.decay.dt_bias, "dt_bias", {"H"});
  const Args args{.x = view<bf16>(in.conv.x),
                  .w = static_cast<const bf16*>(in.conv.w.data),
                  .bias = static_cast<const bf16*>(in.conv.bias.data),
                  .window = static_cast<bf16*>(in.conv.window.data),
                  .C = in.conv.x[1],
                  .activation = static_cast<int>(in.conv.activation),
                  .l2_eps = static_cast<float>(in.l2_eps),
                  .alpha = view<bf16>(in.decay.x),
                  .beta = view<bf16>(in.beta.x),
                  .A_log = in.decay.A_log.as<float>(),
                  .dt_bias = in.decay.dt_bias.as<float>(),
                  .step_min = static_cast<float>(in.decay.step_min),
                  .step_max = static_cast<float>(in.decay.step_max),
                  .beta_scale = static_cast<float>(in.beta.scale),
                  .state = l.state.as<float>(),
                  .scale = static_cast<float>(l.scale),
                  .z = view<bf16>(a.norm.gate),
                  .out = view<bf16>(a.norm.out),
                  .norm = static_cast<const bf16*>(a.norm.weight.data),
                  .norm_h = a.norm.weight.rank == 2 ? kDim : 0,
                  .norm_eps = static_cast<float>(a.norm.eps),
                  .gate = static_cast<int>(a.norm.activation),
                  .Hk = Hk,
                  .Hv = Hv,
                  .table = table.device()};
  launch_next_clusters("gated row", gated_row_kernel, dim3(static_cast<unsigned>(table.rows() * Hv)), dim3(kThreads), 0,
                       Hv / Hk, stream, args);
}

}  // namespace hypic::cuda
