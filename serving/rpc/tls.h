// Mutual TLS of the control plane: both ends show a certificate of one authority.
#pragma once

#include <string>

namespace hypic {

// PEM files, or none.
struct TlsFiles {
  std::string ca, cert, key;
  bool any() const { return !ca.empty() || !cert.empty() || !key.empty(); }
};

// What they hold; all empty: no TLS.
struct Tls {
  std::string ca, cert, key;
  bool on() const { return !ca.empty(); }
};

// Error, with the option: some of the files are named and others not; a file that cannot be read, is over 1 MiB or no
// PEM of its kind; a key that is encrypted or not the certificate's; a certificate that the authority did not sign, or
// whose time is over or not yet come.
Tls read_tls(const TlsFiles& files);

}  // namespace hypic
