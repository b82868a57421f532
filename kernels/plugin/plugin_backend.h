// A backend some of whose operations are those of a plug-in (hypic_kernel.h), the others those of another backend.
#pragma once

#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>

#include "core/backend.h"
#include "kernels/plugin/hypic_kernel.h"

namespace hypic::plugin {

// A plug-in's operation says that it failed. No Error: the input was good.
struct KernelFailure : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Told when the plug-in's code, or the device behind it, has the program in its hands, so that another process can
// tell where it crashed or hangs.
class Watch {
 public:
  virtual ~Watch() = default;
  virtual void loaded(const std::string& path, const hypic_kernel& kernel) = 0;
  virtual void enter(std::string_view what) = 0;  // "linear_attention"
  virtual void leave() = 0;
  // An operation that the plug-in offers: what computed it, as in Backend::launches.
  virtual void ran(const std::string& key) = 0;
};

// Backend::launches tells how often the plug-in computed an operation that it offers ("linear_attention/kernel") and
// how often and why it was left to `base` ("linear_attention/base:jumps,strided": capabilities that the table does not
// declare; "linear_attention/base:declined:REASON": it returned HYPIC_UNSUPPORTED). The library stays loaded until the
// program ends. `stream`: base's cudaStream_t, null on the CPU. Plug-ins see the chain table of their own forward only:
// nothing is recorded for replay. Error: no such library, none that this program can load, no hypic_kernel_get, another
// ABI version, a malformed table, or not of base's device or dtype.
std::unique_ptr<Backend> make_plugin_backend(std::unique_ptr<Backend> base, const std::string& path, void* stream,
                                             Watch& watch);

}  // namespace hypic::plugin
