#include "serving/rpc/tls.h"

#include <gtest/gtest.h>

#include "serving/rpc/test_certificates.h"

namespace hypic {
namespace {

std::string error_of(const TlsFiles& files) {
  try {
    read_tls(files);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(Tls, WithoutFilesItIsOff) {
  EXPECT_FALSE(read_tls({}).on());
  EXPECT_EQ(error_of({.ca = "a.pem"}), "--tls-ca, --tls-cert and --tls-key: give all three, or none");
  EXPECT_EQ(error_of({.ca = "none.pem", .cert = "c", .key = "k"}).find("--tls-ca: none.pem: "), 0u);
}

TEST(Tls, FilesMustBelongTogether) {
  if (!TestCertificates::can_be_made()) GTEST_SKIP() << "no program openssl here to make certificates";
  TestCertificates made;
  made.authority("ca");
  made.authority("other");
  made.certificate("one", "ca", "IP:127.0.0.1");
  made.certificate("two", "ca", "IP:127.0.0.1");
  EXPECT_TRUE(read_tls(made.files("ca", "one")).on());
  TlsFiles files = made.files("ca", "one");
  files.key = made.path("two.key");
  EXPECT_EQ(error_of(files), str("--tls-key: ", files.key, " is not the key of the certificate in ", files.cert));
  files = made.files("other", "one");
  EXPECT_EQ(error_of(files).find(str("--tls-cert: ", files.cert, ": unable to get local issuer certificate")), 0u)
      << error_of(files);
  files = made.files("ca", "one");
  files.ca = made.path("ca.key");
  EXPECT_EQ(error_of(files), str("--tls-ca: ", files.ca, " holds no certificate in PEM"));
  files = made.files("ca", "one");
  files.cert = made.path("one.csr");
  EXPECT_EQ(error_of(files), str("--tls-cert: ", files.cert, " holds no certificate in PEM"));
  made.run("openssl ec -in one.key -aes128 -passout pass:secret -out locked.key");
  files = made.files("ca", "one");
  files.key = made.path("locked.key");
  EXPECT_EQ(error_of(files), str("--tls-key: ", files.key, " holds no private key in PEM, or an encrypted one"));
  made.run("cat one.pem ca.pem >chain.pem");  // what comes with ours may be what the authority has as well
  files = made.files("ca", "one");
  files.cert = made.path("chain.pem");
  EXPECT_TRUE(read_tls(files).on());
}

}  // namespace
}  // namespace hypic
