#include "harness/backends.h"

#include "core/check.h"
#include "harness/cases/broken.h"
#include "kernels/cuda_backend.h"
#include "reference/cpu_backend.h"

namespace hypic {

std::unique_ptr<Backend> make_backend(const std::string& name) {
  if (name == "cpu") return reference::make_cpu_backend();
  if (name == "cpu64") return reference::make_cpu64_backend();
  if (name == "cuda") return cuda::make_cuda_backend(DType::bf16);
  if (name == "cuda32") return cuda::make_cuda_backend(DType::f32);
  if (name.starts_with("broken:")) return conformance::make_broken_backend(name.substr(7));
  fail("unknown backend \"", name, "\"; known: cpu, cpu64, cuda, cuda32, broken:FAULT");
}

}  // namespace hypic
