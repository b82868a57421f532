#include "harness/rpc/tls_options.h"

#include <CLI/CLI.hpp>

namespace hypic {

void add_tls_options(CLI::App& command, TlsFiles& files) {
  command.add_option("--tls-ca", files.ca, "PEM file of the authority that router's and workers' certificates are of");
  command.add_option("--tls-cert", files.cert, "PEM file of its own certificate; with these TLS, of both ends, is on");
  command.add_option("--tls-key", files.key, "PEM file of the certificate's private key");
}

}  // namespace hypic
