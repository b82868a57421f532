// Backends that are wrong on purpose: the `cpu` backend with one operation broken the way kernels
// have been. They prove that the suite would notice.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/backend.h"

namespace hypic::conformance {

struct FaultClass {
  std::string name;   // "state_transposed"
  std::string what;   // what the backend does wrong
  int reported;       // the reported fault that it is a form of (docs/conformance.md), 0: none
  std::string cases;  // regular expression: the cases that look for it
};

const std::vector<FaultClass>& fault_classes();

// Error: an unknown name, with those there are.
const FaultClass& fault_class(const std::string& name);
std::unique_ptr<Backend> make_broken_backend(const std::string& name);

}  // namespace hypic::conformance
