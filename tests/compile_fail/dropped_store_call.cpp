// A call of the store does nothing before it is awaited or waited for: dropping it warns (an error in this file).
// expect: nodiscard
// expect: store.set("key", "value")
#include "dtrain/dtrain.hpp"

#pragma GCC diagnostic error "-Wunused-result"

void publish(const dtrain::rendezvous::Store& store) {
#ifdef DTRAIN_COMPILE_FAIL
  store.set("key", "value");
#else
  store.set("key", "value").wait();
#endif
}
