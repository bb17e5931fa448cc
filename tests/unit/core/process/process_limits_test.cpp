#include "dtrain/core/process/blocked_write_signals.hpp"

#include <sys/resource.h>

#include "unit/core/prelude.hpp"

namespace {

/// The same where SIGXFSZ does what it does by default.
template <class Act>
int in_child(Act act) {
  return support::in_child([&] {
    static_cast<void>(::signal(SIGXFSZ, SIG_DFL));
    return act();
  });
}

template <class Resource>
bool limit(Resource resource, rlim_t bytes) {
  const rlimit wanted{bytes, RLIM_INFINITY};
  return ::setrlimit(resource, &wanted) == 0;
}

/// The error of a write at `offset` of a new memory file; 0 where it is done.
int write_at(off_t offset) {
  const int file = ::memfd_create("test", MFD_CLOEXEC);
  const int error = ::pwrite(file, "x", 1, offset) == 1 ? 0 : errno;
  ::close(file);
  return error;
}

/// exception_text() of what `call` throws.
template <class F>
std::string text_of(F call) {
  try {
    call();
  } catch (...) {
    return dtrain::exception_text();
  }
  return "";
}

TEST_CASE("an error that a limit of the process may be the cause of names that limit") {
  CHECK(std::string(dtrain::posix_error(EBUSY, "doing it").what()) == "doing it: Device or resource busy");
  CHECK(in_child([] {
          if (!limit(RLIMIT_AS, RLIM_INFINITY) || !limit(RLIMIT_FSIZE, RLIM_INFINITY)) return 1;
          const bool silent = dtrain::limit_hint(ENOMEM).empty() && dtrain::limit_hint(EFBIG).empty();
          if (!limit(RLIMIT_FSIZE, rlim_t{64} << 10)) return 2;
          const std::string said = dtrain::posix_error(EFBIG, "writing", "do something").what();
          return silent && said ==
                               "writing: File too large; files that this process writes are limited to 65536 "
                               "bytes (ulimit -f); do something"
                     ? 0
                     : 3;
        }) == 0);
}

TEST_CASE("what is thrown is told in its own words, and lacking memory with the limit") {
  CHECK(text_of([] { throw std::runtime_error("trouble"); }) == "trouble");
  CHECK(text_of([] { throw 3; }) == "an exception that is not a std::exception");
  CHECK(text_of([] { throw std::bad_alloc(); }).substr(0, 25) == "memory could not be had: ");
  CHECK(in_child([] {
          const rlim_t bytes = rlim_t{1} << 50;
          if (!limit(RLIMIT_AS, bytes)) return 1;
          return text_of([] { throw std::bad_alloc(); }) ==
                         "memory could not be had: std::bad_alloc; the address space of this process is limited to "
                         "1125899906842624 bytes (ulimit -v)"
                     ? 0
                     : 2;
        }) == 0);
}

TEST_CASE("a file beyond the limit ends a process, but where that is made an error") {
  constexpr off_t beyond = 100'000;
  const auto limited = [] { return limit(RLIMIT_FSIZE, rlim_t{64} << 10); };
  CHECK(in_child([&] { return limited() ? write_at(beyond) : 1; }) == 128 + SIGXFSZ);
  CHECK(in_child([&] {
          if (!limited()) return 1;
          for (int i = 0; i < 2; ++i) {
            const BlockedWriteSignals no_signal;
            if (write_at(beyond) != EFBIG || write_at(10) != 0) return 2;
          }
          return 0;
        }) == 0);
  CHECK(in_child([&] {
          if (!limited()) return 1;
          {
            const BlockedWriteSignals no_signal;
            if (write_at(beyond) != EFBIG) return 2;
          }
          return write_at(beyond);
        }) == 128 + SIGXFSZ);
}

}  // namespace
