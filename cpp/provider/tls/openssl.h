// OpenSSL's objects with owners, and its errors as text.
#pragma once

#include <openssl/bio.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>

#include <memory>
#include <string>

namespace rrpc::provider::tls {

template <auto free_function>
struct FreeWith {
  template <typename T>
  void operator()(T* object) const {
    free_function(object);
  }
};
using SslContext = std::unique_ptr<SSL_CTX, FreeWith<SSL_CTX_free>>;
using Ssl = std::unique_ptr<SSL, FreeWith<SSL_free>>;
using Session = std::unique_ptr<SSL_SESSION, FreeWith<SSL_SESSION_free>>;
using Certificate = std::unique_ptr<X509, FreeWith<X509_free>>;
using BioMethod = std::unique_ptr<BIO_METHOD, FreeWith<BIO_meth_free>>;
using Bio = std::unique_ptr<BIO, FreeWith<BIO_free_all>>;

// The oldest error in this thread's queue, which is emptied: it is the one nearest to the cause.
struct OpenSslError {
  unsigned long code = 0;
  int reason = 0;
  std::string text;  // "no start line"; empty where there was none
};
OpenSslError take_error();

}  // namespace rrpc::provider::tls
