// A library that starts a thread in its constructor, if PROBE_EARLY_THREAD is set. The thread blocks no signal, so the
// system may pick it for any signal to the process.

#include "support/early_threads.hpp"

#include <pthread.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>

namespace {

int started = 0;

void* idle(void*) {
  for (;;)
    ::pause();
}

__attribute__((constructor)) void start() {
  if (std::getenv("PROBE_EARLY_THREAD") == nullptr) return;
  pthread_t thread{};
  sigset_t none;
  sigset_t before;
  sigemptyset(&none);
  static_cast<void>(::pthread_sigmask(SIG_SETMASK, &none, &before));
  started = ::pthread_create(&thread, nullptr, idle, nullptr) == 0 ? 1 : -1;
  static_cast<void>(::pthread_sigmask(SIG_SETMASK, &before, nullptr));
}

}  // namespace

extern "C" int early_threads() {
  return started;
}
