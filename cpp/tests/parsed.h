// Parsers that return the message, for tests.
#pragma once

#include "base/result.h"
#include "rpc/messages.h"

namespace rrpc::rpc::testing {

inline Result<ParsedRequest> parsed_request(Bytes body) {
  ParsedRequest request;
  RRPC_RETURN_IF_ERROR(parse_request(body, request));
  return request;
}

inline Result<ParsedReply> parsed_reply(Bytes body) {
  ParsedReply reply;
  RRPC_RETURN_IF_ERROR(parse_reply(body, reply));
  return reply;
}

}  // namespace rrpc::rpc::testing
