#include "harness/backends.h"

#include "core/check.h"
#include "reference/cpu_backend.h"

namespace hypic {

std::unique_ptr<Backend> make_backend(const std::string& name) {
  if (name == "cpu") return reference::make_cpu_backend();
  if (name == "cpu64") return reference::make_cpu64_backend();
  fail("unknown backend \"", name, "\"; known: cpu, cpu64");
}

}  // namespace hypic
