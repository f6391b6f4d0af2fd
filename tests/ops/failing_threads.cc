// SPDX-License-Identifier: Apache-2.0
// To be preloaded: lets no thread start for a while.
#include <dlfcn.h>
#include <pthread.h>

#include <atomic>
#include <cerrno>

namespace {

std::atomic<bool> is_armed{false};
std::atomic<int> refused{0};

}  // namespace

extern "C" {

// From now on, no thread starts.
void RefuseThreads() {
  refused = 0;
  is_armed = true;
}

// Ends that. Returns how many threads were to start.
int StopRefusing() {
  is_armed = false;
  return refused;
}

int pthread_create(pthread_t* thread, const pthread_attr_t* attributes,
                   void* (*run)(void*), void* argument) {
  if (is_armed) {
    ++refused;
    return EAGAIN;
  }
  using Create = decltype(&pthread_create);
  static const auto create =
      reinterpret_cast<Create>(dlsym(RTLD_NEXT, "pthread_create"));
  return create(thread, attributes, run, argument);
}

}  // extern "C"
