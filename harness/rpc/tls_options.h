// The options of the control plane's certificates, which workers and routers share.
#pragma once

#include <CLI/App.hpp>

#include "serving/rpc/tls.h"

namespace hypic {

void add_tls_options(CLI::App& command, TlsFiles& files);

}  // namespace hypic
