#pragma once
/// @file
/// net::wait_descriptor(): blocking waits for a descriptor, with a deadline. UnixConnection and settings.hpp call it.

#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <string>

#include "dtrain/core/deadline.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/process/descriptor.hpp"
#include "dtrain/core/text/format_text.hpp"

namespace DTRAIN_NAMESPACE::net {

/// Returns on `events` (POLLIN, POLLOUT), an error or the peer's close. With a past deadline it checks once.
/// Blocking: until the deadline.
/// @param doing begins the error message
/// @throws Error (timeout, posix)
inline void wait_descriptor(int descriptor, short events, Deadline deadline, const std::string& doing) {
  for (;;) {
    const bool last = deadline.passed();
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline.remaining());
    pollfd entry{descriptor, events, 0};
    const int count = ::poll(&entry, 1, static_cast<int>(std::min(left, std::chrono::milliseconds(60'000)).count()));
    if (count > 0) {
      return;
    }
    if (count < 0 && errno != EINTR) {
      throw_errno(doing);
    }
    if (last) {
      throw_error(Errc::timeout, "{}: the deadline passed", {doing});
    }
  }
}

/// Sleeps a millisecond. @throws Error (timeout) if the deadline has passed, (posix)
inline void pause_before_retry(Deadline deadline, const std::string& doing) {
  if (deadline.passed()) {
    throw_error(Errc::timeout, "{}: the deadline passed", {doing});
  }
  if (::poll(nullptr, 0, 1) < 0 && errno != EINTR) {
    throw_errno(doing);
  }
}

}  // namespace DTRAIN_NAMESPACE::net
