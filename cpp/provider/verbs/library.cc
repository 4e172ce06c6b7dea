#include "provider/verbs/library.h"

#include <dlfcn.h>

namespace rrpc::provider::verbs {

void* find_in_library(const char* name) {
  if (void* found = dlsym(RTLD_DEFAULT, name); found != nullptr) return found;
  void* library = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_NOLOAD);  // stays: this plugin is linked to it
  return library != nullptr ? dlsym(library, name) : nullptr;
}

}  // namespace rrpc::provider::verbs
