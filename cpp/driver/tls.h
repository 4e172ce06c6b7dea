// TLS contexts of this process, one for equal options.
#pragma once

#include <memory>

#include "base/result.h"
#include "driver/address.h"
#include "driver/options.h"

namespace rrpc::driver {

// Makes the address secure where the options want TLS. InvalidArgument for verbs without an rdma_security, and for an
// rdma_security without TLS.
Status choose_tls(Address& address, const Options& options);
// Null for an address that isn't secure. An error names the file that is wrong, or says why there is no TLS here.
Result<std::shared_ptr<provider::TlsContext>> tls_context(const Address& address, provider::TlsRole role,
                                                          const Options& options);

}  // namespace rrpc::driver
