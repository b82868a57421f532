#include "serving/rpc/tls.h"

#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <openssl/x509_vfy.h>

#include <memory>

#include "core/check.h"
#include "core/file.h"

namespace hypic {
namespace {

constexpr size_t kMaxFile = 1 << 20;

template <auto free>
struct Freed {
  template <class T>
  void operator()(T* object) const {
    free(object);
  }
};
using Bio = std::unique_ptr<BIO, Freed<BIO_free>>;
using Certificate = std::unique_ptr<X509, Freed<X509_free>>;
using PrivateKey = std::unique_ptr<EVP_PKEY, Freed<EVP_PKEY_free>>;
using Store = std::unique_ptr<X509_STORE, Freed<X509_STORE_free>>;
using StoreContext = std::unique_ptr<X509_STORE_CTX, Freed<X509_STORE_CTX_free>>;

std::string read(const char* option, const std::string& path) {
  try {
    return read_file(path, kMaxFile);
  } catch (const Error& error) {
    fail(option, ": ", error.what());
  }
}

Bio bio_of(const std::string& text) {
  Bio bio(BIO_new_mem_buf(text.data(), static_cast<int>(text.size())));
  HYPIC_CHECK(bio != nullptr);
  return bio;
}

Certificate next_certificate(BIO* bio) { return Certificate(PEM_read_bio_X509(bio, nullptr, nullptr, nullptr)); }

// An encrypted key asks for its password: there is none.
int no_password(char*, int, int, void*) { return -1; }

}  // namespace

Tls read_tls(const TlsFiles& files) {
  if (!files.any()) return {};
  require(!files.ca.empty() && !files.cert.empty() && !files.key.empty(),
          "--tls-ca, --tls-cert and --tls-key: give all three, or none");
  const Tls tls{read("--tls-ca", files.ca), read("--tls-cert", files.cert), read("--tls-key", files.key)};
  const Bio ca = bio_of(tls.ca), cert = bio_of(tls.cert), key = bio_of(tls.key);
  const Store store(X509_STORE_new());
  int authorities = 0;
  for (Certificate one; (one = next_certificate(ca.get())); ++authorities) X509_STORE_add_cert(store.get(), one.get());
  require(authorities > 0, "--tls-ca: ", files.ca, " holds no certificate in PEM");
  const Certificate own = next_certificate(cert.get());
  require(own != nullptr, "--tls-cert: ", files.cert, " holds no certificate in PEM");
  const PrivateKey secret(PEM_read_bio_PrivateKey(key.get(), nullptr, no_password, nullptr));
  require(secret != nullptr, "--tls-key: ", files.key, " holds no private key in PEM, or an encrypted one");
  require(X509_check_private_key(own.get(), secret.get()) == 1, "--tls-key: ", files.key,
          " is not the key of the certificate in ", files.cert);
  // Certificates between ours and the authority follow it in its file.
  STACK_OF(X509)* const between = sk_X509_new_null();
  for (Certificate one; (one = next_certificate(cert.get()));) sk_X509_push(between, one.release());
  const StoreContext context(X509_STORE_CTX_new());
  X509_STORE_CTX_init(context.get(), store.get(), own.get(), between);
  const bool good = X509_verify_cert(context.get()) == 1;
  const int why = X509_STORE_CTX_get_error(context.get());
  sk_X509_pop_free(between, X509_free);
  ERR_clear_error();
  require(good, "--tls-cert: ", files.cert, ": ", X509_verify_cert_error_string(why), " (by --tls-ca ", files.ca, ")");
  return tls;
}

}  // namespace hypic
