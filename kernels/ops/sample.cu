// One block a row, and no sort: top-k, top-p and the draw each look for the token at which the mass
// of those before it and its own, in falling order, reaches a target. That order is one of numbers,
// logit and index put together, so a radix search finds the token digit by digit. Masses are
// integers: their sums are the same in any order of the threads.
#include "kernels/ops/sample.cuh"

#include "kernels/common/block.cuh"
#include "kernels/common/launch_next.cuh"
#include "kernels/common/piece.cuh"
#include "kernels/common/view.cuh"

namespace hypic::cuda {
namespace {

constexpr int kThreads = 1024;
constexpr int kDigitBits = 8;
constexpr int kDigits = 1 << kDigitBits;
constexpr int kIndexBits = 24;
constexpr int kCopies = 16;  // of each sum, one a thread: most logits share their first digit

using Mass = unsigned long long;

struct Shared {
  union {
    struct {
      float best[kThreads];
      int32_t at[kThreads];
    } argmax;
    Mass partial[kDigits * kCopies];
  };
  Mass sums[kDigits];  // of the masses with this digit or a larger one
  int digit;
};

// A row as numbers: the larger, the earlier in falling order of the logits.
template <class T>
struct Ranks {
  static constexpr int kLogitBits = 8 * sizeof(T);
  static constexpr int kBits = kLogitBits + kIndexBits;
  static_assert(kBits % kDigitBits == 0 && kBits < 64);

  const T* logits;
  int N;

  __device__ static uint64_t of(float logit, int index) {
    const uint32_t bits = __float_as_uint(logit == 0 ? 0.0f : logit);  // −0 = 0
    const uint32_t rising = (bits & 0x80000000u ? ~bits : bits | 0x80000000u) >> (32 - kLogitBits);
    return static_cast<uint64_t>(rising) << kIndexBits | ((1u << kIndexBits) - 1 - index);
  }
  __device__ static int index(uint64_t rank) {
    return static_cast<int>((1u << kIndexBits) - 1 - (rank & ((1u << kIndexBits) - 1)));
  }
};

// The rank of the first token in falling order at which the mass so far is at least target(mass of
// all); all are those of rank `last` or before. The target lies between 1 and the mass of all.
template <class T, class MassOf, class Target>
__device__ uint64_t find(const Ranks<T>& row, uint64_t last, MassOf mass, Target target,
                         Shared& shared) {
  uint64_t prefix = 0;        // the digits found
  Mass before = 0, want = 0;  // before: of the tokens before any with this prefix
  for (int shift = Ranks<T>::kBits - kDigitBits; shift >= 0; shift -= kDigitBits) {
    for (int i = threadIdx.x; i < kDigits * kCopies; i += kThreads) shared.partial[i] = 0;
    __syncthreads();
    for (int i = threadIdx.x; i < row.N; i += kThreads) {
      const float x = load(row.logits + i);
      if (!(x > -INFINITY)) continue;  // NaN too
      const uint64_t rank = row.of(x, i);
      if (rank < last || rank >> shift >> kDigitBits != prefix) continue;
      const auto digit = static_cast<int>(rank >> shift) & (kDigits - 1);
      if (const Mass m = mass(x))
        atomicAdd(&shared.partial[digit * kCopies + threadIdx.x % kCopies], m);
    }
    __syncthreads();
    const int d = threadIdx.x;
    if (d < kDigits) {
      Mass sum = 0;
      for (int copy = 0; copy < kCopies; ++copy) sum += shared.partial[d * kCopies + copy];
      shared.sums[d] = sum;
    }
    for (int step = 1; step < kDigits; step *= 2) {
      __syncthreads();
      const Mass other = d + step < kDigits ? shared.sums[d + step] : 0;
      __syncthreads();
      if (d < kDigits) shared.sums[d] += other;
    }
    __syncthreads();
    if (want == 0) want = target(shared.sums[0]);
    if (d < kDigits && before + shared.sums[d] >= want &&
        (d == kDigits - 1 || before + shared.sums[d + 1] < want))
      shared.digit = d;
    __syncthreads();
    const int digit = shared.digit;
    prefix = prefix << kDigitBits | digit;
    if (digit < kDigits - 1) before += shared.sums[digit + 1];
    __syncthreads();
  }
  return prefix;
}

// Of a whole row: by pieces, several of them under way, for one block alone waits for memory.
template <class T>
__device__ Largest largest_of(const T* logits, int N) {
  constexpr int kSize = Piece<T>::kSize;
  const int pieces = reinterpret_cast<uintptr_t>(logits) % 16 == 0 ? N / kSize : 0;
  Largest mine;
#pragma unroll 8
  for (int p = threadIdx.x; p < pieces; p += kThreads) {
    const Piece<T> piece = Piece<T>::load(logits + static_cast<int64_t>(p) * kSize);
#pragma unroll
    for (int i = 0; i < kSize; ++i) mine.see(piece.at[i], p * kSize + i);
  }
  for (int i = pieces * kSize + static_cast<int>(threadIdx.x); i < N; i += kThreads) mine.see(load(logits + i), i);
  return mine;
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    sample_kernel(View<T> logits, int N, View<float> temperatures, View<int32_t> top_ks,
                  View<float> top_ps, View<float> uniforms, double unit, View<int32_t> out) {
  __shared__ Shared shared;
  const int64_t r = blockIdx.x;
  follow();
  const Ranks<T> row{logits.row(r), N};
  const int best = block_argmax<kThreads>(largest_of(row.logits, N), shared.argmax.best, shared.argmax.at);
  const double top = load(row.logits + best);
  const double temperature = temperatures ? *temperatures.row(r) : 0;
  const int top_k = top_ks ? *top_ks.row(r) : 0;
  const double top_p = top_ps ? *top_ps.row(r) : 1;
  if (!(temperature > 0) || !isfinite(top) || top_k == 1) {
    if (threadIdx.x == 0) *out.row(r) = best;
    return;
  }
  const auto mass = [&](float x) { return __double2ull_rn(unit * exp((x - top) / temperature)); };
  uint64_t last = 0;
  if (0 < top_k && top_k < N)
    last = find(
        row, last, [](float) { return Mass{1}; },
        [&](Mass all) { return min(all, static_cast<Mass>(top_k)); }, shared);
  if (top_p < 1)
    last = find(
        row, last, mass,
        [&](Mass all) {
          const Mass enough = __double2ull_ru(top_p * __ull2double_rn(all));
          return max(min(enough, all), Mass{1});
        },
        shared);
  const double uniform = *uniforms.row(r);
  const uint64_t token = find(
      row, last, mass,
      [&](Mass all) {
        const Mass passed = __double2ull_rd(uniform * __ull2double_rn(all));
        return min(passed + 1, all);
      },
      shared);
  if (threadIdx.x == 0) *out.row(r) = row.index(token);
}

}  // namespace

void sample(const SampleArgs& a, cudaStream_t stream) {
  Shapes shapes("sample");
  shapes.bind(a.logits, "logits", {"R", "N"}).bind(a.out, "out", {"R"});
  if (a.temperature)
    shapes.bind(a.temperature, "temperature", {"R"}).bind(a.uniform, "uniform", {"R"});
  if (a.top_k) shapes.bind(a.top_k, "top_k", {"R"});
  if (a.top_p) shapes.bind(a.top_p, "top_p", {"R"});
  const int64_t R = shapes["R"], N = shapes["N"];
  HYPIC_CHECK(1 <= N && N <= 1 << kIndexBits, "sample: logits ", a.logits.shape_string());
  if (R == 0) return;
  // The mass of the best token: as large as lets N of them add up in 64 bits.
  double unit = 0x1p63;
  for (int64_t n = 1; n < N; n *= 2) unit /= 2;
  visit_device(a.logits.dtype, [&](auto zero) {
    using T = decltype(zero);
    launch_next("sample", sample_kernel<T>, dim3(static_cast<unsigned>(R)), dim3(kThreads), 0, stream,
                view<T>(a.logits), static_cast<int>(N), view<float>(a.temperature), view<int32_t>(a.top_k),
                view<float>(a.top_p), view<float>(a.uniform), unit, view<int32_t>(a.out));
  });
}

}  // namespace hypic::cuda
