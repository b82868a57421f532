#include "harness/backends.h"

#include <charconv>
#include <filesystem>
#include <optional>
#include <utility>

#include "core/check.h"
#include "harness/cases/broken.h"
#include "harness/kernel_process.h"
#include "kernels/cuda_backend.h"
#include "kernels/nccl_links.h"
#include "kernels/plugin/plugin_backend.h"
#include "reference/cpu_backend.h"
#include "reference/socket_links.h"

namespace hypic {
namespace {

// Of "cuda", "cuda32:plain" and so on; nothing for others.
std::optional<cuda::CudaOptions> cuda_options(const std::string& name, int device = 0) {
  for (const auto& [family, compute] : {std::pair{"cuda", DType::bf16}, {"cuda32", DType::f32}}) {
    if (name == family || name == str(family, ":fast")) return cuda::CudaOptions{.compute = compute, .device = device};
    if (name == str(family, ":plain"))
      return cuda::CudaOptions{.compute = compute, .rung = cuda::Rung::plain, .device = device};
    int sms = 0;
    const std::string start = str(family, ":");
    if (name.starts_with(start)) {
      const char* const end = name.data() + name.size();
      const auto [at, error] = std::from_chars(name.data() + start.size(), end, sms);
      if (error == std::errc() && at == end && sms > 0)
        return cuda::CudaOptions{.compute = compute, .device = device, .sms = sms};
    }
  }
  return {};
}

}  // namespace

bool on_gpu(const std::string& name) { return cuda_options(name.substr(0, name.find('+'))).has_value(); }

std::unique_ptr<Backend> make_backend(const std::string& name, int device) {
  if (const size_t plus = name.find('+'); plus != name.npos) {
    require(kernel_process::is_child(), name, ": a kernel is loaded in a child process only; give it by --kernel");
    std::unique_ptr<Backend> base = make_backend(name.substr(0, plus), device);
    void* const stream = cuda::stream_of(*base);
    return plugin::make_plugin_backend(std::move(base), name.substr(plus + 1), stream, kernel_process::watch());
  }
  if (name == "cpu") return reference::make_cpu_backend();
  if (name == "cpu64") return reference::make_cpu64_backend();
  if (const auto options = cuda_options(name, device)) return cuda::make_cuda_backend(*options);
  if (name.starts_with("broken:")) return conformance::make_broken_backend(name.substr(7));
  fail("unknown backend \"", name, "\"; known: cpu, cpu64, cuda, cuda32, cuda:plain, cuda32:plain, cuda:SMS, "
       "cuda32:SMS, broken:FAULT");
}

std::vector<std::unique_ptr<Backend>> make_ranks(const std::string& name, std::span<const int> devices) {
  const auto ranks = static_cast<int>(devices.size());
  if (name == "cpu") return reference::make_cpu_ranks(ranks);
  if (name == "cpu64") return reference::make_cpu64_ranks(ranks);
  const auto options = cuda_options(name);
  require(options.has_value(), name, ": takes no part in tensor parallelism; cpu, cpu64, cuda, cuda32 do");
  return cuda::make_cuda_ranks(*options, devices);
}

std::unique_ptr<Links> make_links(const std::string& name, int device) {
  if (name == "cpu" || name == "cpu64") return reference::make_socket_links();
  const auto options = cuda_options(name, device);
  require(options.has_value(), name, ": has no links to other devices; cpu, cpu64, cuda, cuda32 do");
  return cuda::make_nccl_links(options->device);
}

std::string on_rung(const std::string& backend, const std::string& rung) {
  if (rung.empty()) return backend;
  require(rung == "plain" || rung == "fast", "--rung: must be plain or fast, is \"", rung, "\"");
  require(!backend.empty(), "--rung: name the backend too, as in --backend cuda --rung ", rung);
  require(backend.find(':') == backend.npos || backend.starts_with("broken:"), "--rung: ", backend,
          " names its rung already");
  require(backend == "cuda" || backend == "cuda32", "--rung: only of --backend cuda or cuda32, not of ", backend);
  return backend + ":" + rung;
}

std::string with_kernel(const std::string& backend, const std::string& file) {
  std::error_code error;
  require(std::filesystem::is_regular_file(file, error), "--kernel: ", file,
          std::filesystem::exists(file, error) ? ": is no file" : ": no such file", "; it is a shared library");
  require(!backend.starts_with("broken:"), "--kernel: not together with ", backend);
  return str(backend.empty() ? "cpu" : backend, "+", std::filesystem::canonical(file).string());
}

}  // namespace hypic
