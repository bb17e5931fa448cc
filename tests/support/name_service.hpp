#pragma once
/// @file
/// Names below .test, which mean what a test says: this program's getaddrinfo answers for them, and asks the system's
/// for all others.

#include <dlfcn.h>
#include <netdb.h>
#include <sys/socket.h>

#include <atomic>
#include <cstring>
#include <mutex>
#include <string>

namespace support {

/// Threads: any.
class NameService {
 public:
  /// The one that getaddrinfo asks. Whatever a test tells it, the next test begins with reset().
  static NameService& get() {
    static NameService service;
    return service;
  }

  void reset() {
    set_address({});
    hold(false);
    asked_ = 0;
  }

  /// What every name below .test means; empty where they are unknown.
  void set_address(const std::string& numeric) {
    const std::lock_guard lock(mutex_);
    address_ = numeric;
  }

  /// While it is on, nobody gets an answer.
  void hold(bool on) {
    holding_ = on;
    holding_.notify_all();
  }

  /// How often anybody has asked for such a name.
  int asked() const { return asked_; }

  /// The address of a name; empty for an unknown one.
  std::string answer() {
    ++asked_;
    holding_.wait(true);
    const std::lock_guard lock(mutex_);
    return address_;
  }

 private:
  std::mutex mutex_;
  std::string address_;
  std::atomic<bool> holding_{false};
  std::atomic<int> asked_{0};
};

}  // namespace support

/// In the place of the C library's, because a program's own functions come first.
extern "C" [[gnu::used]] inline int getaddrinfo(const char* node, const char* service, const addrinfo* hints,
                                                addrinfo** result) {
  static const auto system = reinterpret_cast<decltype(&::getaddrinfo)>(::dlsym(RTLD_NEXT, "getaddrinfo"));
  const std::string host = node == nullptr ? "" : node;
  if (!host.ends_with(".test")) return system(node, service, hints, result);
  const std::string address = support::NameService::get().answer();
  return address.empty() ? EAI_NONAME : system(address.c_str(), service, hints, result);
}
