// What a provider in a shared object of its own gives to the driver that loads it. The object is built with the
// core and loaded only with it: `build` must match.
#pragma once

#include <memory>

#include "provider/provider.h"

namespace rrpc::provider {

// The ways to connect over ibverbs adapters: librdmacm, and a TCP socket over which queue pairs introduce themselves.
struct VerbsDevices {
  std::unique_ptr<Device> cm;
  std::unique_ptr<Device> socket;
};

constexpr char kVerbsEntryName[] = "rrpc_open_verbs";
#ifndef RRPC_BUILD_ID
#define RRPC_BUILD_ID "unversioned"
#endif
constexpr char kBuildId[] = RRPC_BUILD_ID;

// extern "C". Fills `out`; where no adapter is usable, `why` with one line for the user that names the cure, and `out`
// too if its devices can describe() what is there nonetheless. May be called again, by a forked child too.
using VerbsEntry = void (*)(const char* build, VerbsDevices* out, Status* why);

}  // namespace rrpc::provider
