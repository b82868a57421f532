#include "harness/environment.h"

#include <sys/utsname.h>
#include <unistd.h>

#include <ctime>
#include <fstream>
#include <thread>

#include "core/check.h"
#include "kernels/device.h"

namespace hypic {
namespace {

std::string cpu_model() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);)
    if (line.starts_with("model name")) return line.substr(line.find(':') + 2);
  return "unknown";
}

std::string gpu_list() {
  std::string why, text;
  for (const GpuInfo& gpu : gpus(&why))
    text +=
        str(text.empty() ? "" : "; ", gpu.name, ", ", gpu.multiprocessors, " SMs, ",
            gpu.memory_bytes >> 30, " GiB, sm_", gpu.compute_major, gpu.compute_minor,
            ", driver for CUDA ", gpu.driver_version / 1000, ".", gpu.driver_version % 1000 / 10);
  return text.empty() ? str("none (", why, ")") : text;
}

std::string utc_now() {
  const std::time_t now = std::time(nullptr);
  char text[32];
  std::strftime(text, sizeof(text), "%Y-%m-%d %H:%M:%S UTC", std::gmtime(&now));
  return text;
}

}  // namespace

Environment environment() {
  Environment e;
  utsname system{};
  uname(&system);
  e.set("hypic", HYPIC_VERSION);
  e.set("commit", HYPIC_COMMIT);
#if defined(__clang__)
  e.set("compiler", "clang " __clang_version__);
#else
  e.set("compiler", "gcc " __VERSION__);
#endif
  e.set("cpu", cpu_model());
  e.set("cores", std::to_string(std::thread::hardware_concurrency()));
  e.set("memory",
        str(static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGE_SIZE) >> 30, " GiB"));
  e.set("gpu", gpu_list());
  e.set("system", str(system.sysname, " ", system.release, " ", system.machine));
  e.set("date", utc_now());
  return e;
}

}  // namespace hypic
