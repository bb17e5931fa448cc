#pragma once
/// @file
/// dtrain::Error: base of all exceptions, with code, action, reason, remedy and place.

#include <optional>
#include <string>
#include <system_error>
#include <utility>

#include "dtrain/core/config.hpp"

namespace DTRAIN_NAMESPACE {

/// As a default argument, `SourceLocation::current()` is the position of the call.
/// @ingroup errors
struct SourceLocation {
  constexpr SourceLocation() noexcept = default;  // no aggregate: a list of values for a text is never converted to it

  const char* file = "";
  const char* function = "";
  unsigned line = 0;

  static constexpr SourceLocation current(const char* file = __builtin_FILE(),
                                          const char* function = __builtin_FUNCTION(),
                                          unsigned line = __builtin_LINE()) noexcept {
    SourceLocation place;
    place.file = file;
    place.function = function;
    place.line = line;
    return place;
  }
};

/// Text to append to an error of the system: this process's limit that may have caused it, as in "; the address space
/// of this process is limited to 4096000 bytes (ulimit -v)"; empty if there is none.
std::string limit_hint(int error);

/// The codes of dtrain's own category. Codes of the system, CUDA, NCCL, MPI and Gloo keep their own categories.
/// @ingroup errors
enum class Errc : int {
  invalid_argument = 1,  ///< a caller broke a documented precondition
  usage,                 ///< an invalid command line
  identity,              ///< the environment does not identify this process
  timeout,               ///< a deadline passed
  cancelled,             ///< the operation was cancelled by its owner
  closed,                ///< the peer closed the connection
  refused,               ///< the peer refused, with a reason
  protocol,              ///< bytes from outside that do not follow the protocol
  limit,                 ///< a stated bound would be exceeded
  disagreement,          ///< ranks differ in a value that must be the same
  missing_gradient,      ///< a parameter got no gradient in a step
  unsupported,           ///< this backend cannot do it
  out_of_memory,         ///< shared or device memory is exhausted
  job_failed,            ///< another rank failed first; see its cause
  peer_lost,             ///< another rank's process ended
  not_finite,            ///< a gradient is infinite or NaN (OnNotFinite::fail)
};

/// The category of Errc, named "dtrain".
const std::error_category& dtrain_category() noexcept;

inline std::error_code make_error_code(Errc code) noexcept {
  return {static_cast<int>(code), dtrain_category()};
}

/// Base of all exceptions of dtrain. `what()` is the message alone; `code()` has the category and number.
/// @ingroup errors
class Error : public std::system_error {
 public:
  Error(std::error_code code, std::string sentence, SourceLocation where = SourceLocation::current())
      : std::system_error(code), sentence_(std::move(sentence)), where_(where) {}

  Error(Errc code, std::string sentence, SourceLocation where = SourceLocation::current())
      : Error(make_error_code(code), std::move(sentence), where) {}

  const char* what() const noexcept override { return sentence_.c_str(); }

  /// Where dtrain (or the user's code, for a precondition) detected the error.
  const SourceLocation& where() const noexcept { return where_; }

  /// The rank of the error, once known: of the process that threw, or of the one that works for all.
  std::optional<int> rank() const noexcept { return rank_; }

  /// Sets rank(); the message stays the same.
  Error& with_rank(int rank) noexcept {
    rank_ = rank;
    return *this;
  }

 private:
  std::string sentence_;
  SourceLocation where_;
  std::optional<int> rank_;
};

/// An Error of the posix category: "doing: strerror(number)", with the limit that may have caused it, and the remedy.
[[nodiscard]] Error posix_error(int number, const std::string& doing, const std::string& remedy = {},
                                SourceLocation where = SourceLocation::current());

/// posix_error of the present errno.
[[nodiscard]] Error errno_error(const std::string& doing, const std::string& remedy = {},
                                SourceLocation where = SourceLocation::current());

/// Message of the exception that is being handled; if memory ran out, with the limit that may be the cause. The frames
/// that what() of LibTorch's c10::Error lists after its message are left out. @pre in a catch block
std::string exception_text();

}  // namespace DTRAIN_NAMESPACE

template <>
struct std::is_error_code_enum<dtrain::Errc> : std::true_type {};

#if DTRAIN_DEFINITIONS

#include <sys/resource.h>

#include <cerrno>
#include <exception>
#include <new>

namespace DTRAIN_NAMESPACE {

DTRAIN_DEFINED std::string limit_hint(int error) {
  const bool memory = error == ENOMEM;
  rlimit limit{};
  if ((!memory && error != EFBIG) || ::getrlimit(memory ? RLIMIT_AS : RLIMIT_FSIZE, &limit) != 0 ||
      limit.rlim_cur == RLIM_INFINITY) {
    return "";
  }
  return std::string("; ") + (memory ? "the address space of this process is" : "files that this process writes are") +
         " limited to " + std::to_string(limit.rlim_cur) + " bytes (ulimit " + (memory ? "-v)" : "-f)");
}

DTRAIN_DEFINED const std::error_category& dtrain_category() noexcept {
  struct Category final : std::error_category {
    const char* name() const noexcept override { return "dtrain"; }
    std::string message(int code) const override {
      switch (static_cast<Errc>(code)) {
        case Errc::invalid_argument: return "invalid argument";
        case Errc::usage: return "usage error";
        case Errc::identity: return "identity error";
        case Errc::timeout: return "deadline passed";
        case Errc::cancelled: return "cancelled";
        case Errc::closed: return "connection closed";
        case Errc::refused: return "refused";
        case Errc::protocol: return "protocol violation";
        case Errc::limit: return "limit exceeded";
        case Errc::disagreement: return "ranks disagree";
        case Errc::missing_gradient: return "parameter without a gradient";
        case Errc::unsupported: return "unsupported";
        case Errc::out_of_memory: return "out of memory";
        case Errc::job_failed: return "job failed";
        case Errc::peer_lost: return "peer lost";
        case Errc::not_finite: return "gradient that is not finite";
      }
      return "unknown dtrain error";
    }
  };
  static const Category category;
  return category;
}

DTRAIN_DEFINED Error posix_error(int number, const std::string& doing, const std::string& remedy,
                                 SourceLocation where) {
  const std::error_code code(number, std::generic_category());
  std::string sentence = doing;
  sentence.append(": ").append(code.message()).append(limit_hint(number));
  if (!remedy.empty()) {
    sentence.append("; ").append(remedy);
  }
  return {code, std::move(sentence), where};
}

DTRAIN_DEFINED Error errno_error(const std::string& doing, const std::string& remedy, SourceLocation where) {
  return posix_error(errno, doing, remedy, where);
}

DTRAIN_DEFINED std::string exception_text() {
  try {
    throw;
  } catch (const std::bad_alloc& error) {
    return std::string("memory could not be had: ") + error.what() + limit_hint(ENOMEM);
  } catch (const std::exception& error) {
    const std::string text = error.what();
    return text.substr(0, text.find("\nException raised from "));
  } catch (...) {
    return "an exception that is not a std::exception";
  }
}

}  // namespace DTRAIN_NAMESPACE

#endif  // DTRAIN_DEFINITIONS
