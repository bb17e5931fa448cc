#pragma once
/// @file
/// A scope in which this process gets no more threads.

#include <pthread.h>

#include <cstddef>
#include <stdexcept>

namespace support {

/// Every thread that is started without attributes of its own asks for a stack that no address space holds.
class NoThreads {
 public:
  NoThreads() {
    pthread_attr_t attributes;
    if (::pthread_getattr_default_np(&attributes) != 0 || ::pthread_attr_getstacksize(&attributes, &before_) != 0 ||
        ::pthread_attr_destroy(&attributes) != 0) {
      throw std::runtime_error("reading the default size of stacks");
    }
    set(std::size_t{1} << 60);
  }
  NoThreads(const NoThreads&) = delete;
  NoThreads& operator=(const NoThreads&) = delete;
  ~NoThreads() { set(before_); }

 private:
  static void set(std::size_t bytes) {
    pthread_attr_t attributes;
    if (::pthread_attr_init(&attributes) != 0 || ::pthread_attr_setstacksize(&attributes, bytes) != 0 ||
        ::pthread_setattr_default_np(&attributes) != 0 || ::pthread_attr_destroy(&attributes) != 0) {
      throw std::runtime_error("setting the default size of stacks");
    }
  }

  std::size_t before_ = 0;
};

}  // namespace support
