// Certificates for tests, made by the program openssl.
#pragma once

#include <cstdlib>
#include <string>

#include "core/check.h"
#include "core/temporary_folder.h"
#include "serving/rpc/tls.h"

namespace hypic {

class TestCertificates {
 public:
  static bool can_be_made() { return std::system("openssl version >/dev/null 2>&1") == 0; }

  // NAME.pem and NAME.key of an authority.
  void authority(const std::string& name) {
    run(str("openssl req -x509 ", kKey, " -keyout ", name, ".key -out ", name, ".pem -days 2 -subj /CN=", name));
  }
  // Of who is called by `host`, such as IP:127.0.0.1, signed by an authority.
  void certificate(const std::string& name, const std::string& authority, const std::string& host) {
    run(str("openssl req ", kKey, " -keyout ", name, ".key -out ", name, ".csr -subj /CN=", name));
    run(str("echo subjectAltName=", host, " >", name, ".ext"));
    run(str("openssl x509 -req -in ", name, ".csr -CA ", authority, ".pem -CAkey ", authority,
            ".key -CAcreateserial -days 2 -extfile ", name, ".ext -out ", name, ".pem"));
  }
  std::string path(const std::string& file) const { return folder_.path(file); }
  TlsFiles files(const std::string& authority, const std::string& name) const {
    return {path(authority + ".pem"), path(name + ".pem"), path(name + ".key")};
  }
  void run(const std::string& command) const {
    const std::string line = str("cd ", folder_.path(), " && { ", command, "; } >log 2>&1");
    HYPIC_CHECK(std::system(line.c_str()) == 0, command);
  }

 private:
  static constexpr const char* kKey = "-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes";
  const TemporaryFolder folder_;
};

}  // namespace hypic
