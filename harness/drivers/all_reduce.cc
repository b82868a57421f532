#include <algorithm>
#include <chrono>
#include <cmath>
#include <exception>
#include <random>
#include <thread>

#include "core/check.h"
#include "harness/driver.h"
#include "harness/measure/tolerance.h"
#include "harness/model_choice.h"
#include "kernels/cuda_backend.h"

namespace hypic {
namespace {

constexpr int kTimed = 20;

struct Settings {
  std::vector<int> devices;  // one a rank
  std::vector<int64_t> sizes;
};

// What one rank holds after the sum, and how long a sum took.
struct RankResult {
  std::vector<double> sum;
  double seconds = 0;
};

// Every rank's numbers, the same wherever they are drawn.
std::vector<double> numbers(int64_t rank, int64_t n) {
  std::mt19937_64 bits(static_cast<uint64_t>(rank) + 1);
  std::vector<double> x(n);
  for (double& e : x) e = static_cast<double>(static_cast<int64_t>(bits() % 2001) - 1000) / 1024;
  return x;
}

std::vector<std::byte> encoded(const std::vector<double>& x, DType dtype) {
  std::vector<std::byte> bytes(x.size() * size_of(dtype));
  for (size_t i = 0; i < x.size(); ++i) {
    const auto value = static_cast<float>(x[i]);
    const BFloat16 narrow = BFloat16::from(value);
    dtype == DType::f32 ? std::memcpy(&bytes[4 * i], &value, 4) : std::memcpy(&bytes[2 * i], &narrow, 2);
  }
  return bytes;
}

RankResult one_rank(Backend* backend, int rank, DType dtype, int64_t n) {
  backend->enter_thread();
  const Buffer x(*backend, dtype, {n});
  const std::vector<std::byte> bytes = encoded(numbers(rank, n), dtype);
  backend->upload(x, bytes.data());
  backend->all_reduce(x);
  RankResult result{to_doubles(*backend, x), 0};
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < kTimed; ++i) backend->all_reduce(x);
  std::vector<std::byte> wait(size_of(dtype));
  backend->download(wait.data(), x.tensor().rows(0, std::min<int64_t>(n, 1)));
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() / kTimed;
  return result;
}

Result run(const Settings& settings, const ProgressFn& progress) {
  Result result;
  require_gpus({.backend = "cuda", .devices = settings.devices});
  result.verdict = Verdict::pass;
  Table table{str("Sums over ", settings.devices.size(), " ranks"),
              {"dtype", "numbers a rank", "largest error", "share of what is allowed", "ranks with other bits", "ms"},
              {}};
  const auto ranks = static_cast<int>(settings.devices.size());
  double done = 0;
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const auto backends = cuda::make_cuda_ranks({.compute = dtype}, settings.devices);
    for (const int64_t n : settings.sizes) {
      progress(done++ / static_cast<double>(2 * settings.sizes.size()), str(name_of(dtype), ", ", n));
      std::vector<RankResult> results(ranks);
      std::vector<std::exception_ptr> errors(ranks);
      {
        std::vector<std::jthread> threads;
        for (int rank = 0; rank < ranks; ++rank)
          threads.emplace_back([&, rank] {
            try {
              results[rank] = one_rank(backends[rank].get(), rank, dtype, n);
            } catch (...) {
              errors[rank] = std::current_exception();
              backends[rank]->leave_group();
            }
          });
      }
      for (const std::exception_ptr& error : errors)
        if (error) std::rethrow_exception(error);
      std::vector<double> want(n), size(n);
      for (int rank = 0; rank < ranks; ++rank) {
        const std::vector<double> x = numbers(rank, n);
        for (int64_t i = 0; i < n; ++i) {
          // Numbers of three decimal digits are exact in float32; bfloat16 rounds them first.
          const double held = dtype == DType::f32 ? x[i] : static_cast<float>(BFloat16::from(static_cast<float>(x[i])));
          want[i] += held;
          size[i] += std::abs(held);
        }
      }
      double error = 0, share = 0;
      int64_t other = 0;
      for (const RankResult& r : results) {
        other += r.sum != results[0].sum;
        for (int64_t i = 0; i < n; ++i) {
          const double e = std::abs(r.sum[i] - want[i]);
          error = std::max(error, std::isnan(e) ? INFINITY : e);
          share = std::max(share, excess(std::isnan(e) ? INFINITY : e, ranks * unit_roundoff(dtype) * size[i]));
        }
      }
      const std::string tag = str(name_of(dtype), ".", n);
      result.values.push_back({"excess." + tag, share, "bounds"});
      result.values.push_back({"other_bits." + tag, static_cast<double>(other), "ranks"});
      result.values.push_back({"ms." + tag, 1e3 * results[0].seconds, "ms"});
      table.rows.push_back({std::string(name_of(dtype)), Cell(n), Cell(error, Format::scientific),
                            Cell(share, Format::compact, 2, share <= 1 ? Mark::none : Mark::bad), Cell(other),
                            Cell(1e3 * results[0].seconds, Format::fixed, 3)});
    }
  }
  result.tables = {std::move(table)};
  result.note = "Each rank on a GPU of its own, summed by NCCL, or all on one. A sum of n terms rounds at most n − 1 times; every rank "
                "must hold the same bits. ms: of one sum, enqueued back to back.";
  return result;
}

}  // namespace

// Parameters: ranks (2), devices (0, 1, …), sizes ([1, 1000, 1179648, 16777216]), numbers of each rank. Values by dtype and size: excess
// (units of what is allowed), other_bits (ranks that differ from rank 0), ms. SKIP where there are fewer GPUs.
Work prepare_all_reduce(const SuiteCase& suite_case, const std::string& where, const DriverContext&) {
  Parameters parameters(suite_case.parameters, where + ".parameters");
  Settings settings;
  const int64_t ranks = parameters.integer("ranks", 2, 2, kMostRanks);
  settings.devices =
      rank_devices(ranks, parameters.integers("devices", {}, 0, kMostRanks - 1), parameters.place("devices"));
  settings.sizes = parameters.integers("sizes", {1, 1000, 1179648, 16777216}, 1, int64_t{1} << 32);
  parameters.refuse_others();
  return [settings](const ProgressFn& progress) { return run(settings, progress); };
}

}  // namespace hypic
