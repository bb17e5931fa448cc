#pragma once
/// @file
/// Conversion of NCCL's error codes to Error.

#include <cstring>
#include <string>
#include <string_view>
#include <system_error>

#include "dtrain/backend/nccl/library.hpp"
#include "dtrain/core/config.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/core/text/sanitize.hpp"

#if DTRAIN_WITH_NCCL

namespace DTRAIN_NAMESPACE::backend::nccl {

/// The category of ncclResult_t, named "nccl".
inline const std::error_category& nccl_category() noexcept {
  struct Category final : std::error_category {
    const char* name() const noexcept override { return "nccl"; }
    std::string message(int code) const override {
      const char* const text = ncclGetErrorString(static_cast<ncclResult_t>(code));
      return text != nullptr ? text : "NCCL error " + std::to_string(code);
    }
  };
  static const Category category;
  return category;
}

inline std::string name_of(ncclResult_t code) {
  constexpr int timeout = 8;  // of NCCL 2.31; the header may be older than the library
  if (static_cast<int>(code) == timeout) return "ncclTimeout";
  switch (code) {
    case ncclSuccess: return "ncclSuccess";
    case ncclUnhandledCudaError: return "ncclUnhandledCudaError";
    case ncclSystemError: return "ncclSystemError";
    case ncclInternalError: return "ncclInternalError";
    case ncclInvalidArgument: return "ncclInvalidArgument";
    case ncclInvalidUsage: return "ncclInvalidUsage";
    case ncclRemoteError: return "ncclRemoteError";
    case ncclInProgress: return "ncclInProgress";
    default: return "ncclResult_t " + std::to_string(static_cast<int>(code));
  }
}

/// NCCL's last error in this process, at most 300 characters; empty if there is none. The caller holds the lock of
/// `communicator`, or passes null.
inline std::string last_error(ncclComm_t communicator) {
  constexpr std::size_t longest = 300;
  const char* const text = ncclGetLastError(communicator);
  if (text == nullptr) {
    return {};
  }
  std::string_view error_text(text, ::strnlen(text, longest));
  while (!error_text.empty() && (error_text.back() == '\n' || error_text.back() == ' ')) {
    error_text.remove_suffix(1);
  }
  return sanitize(error_text);
}

/// Rank and device of the caller, for NCCL's errors.
struct Caller {
  int rank = 0;  ///< in the job
  int device = 0;
};

/// "ncclAllReduce on rank 1, device 0: ncclSystemError, unhandled system error (last error: ...); REMEDY".
inline Error nccl_error(ncclResult_t code, const std::string& call, Caller caller, const std::string& error_text,
                        const std::string& remedy = "NCCL_DEBUG=WARN makes NCCL say more",
                        SourceLocation where = SourceLocation::current()) {
  Error error(
      std::error_code(static_cast<int>(code), nccl_category()),
      format_text("{} on rank {}, device {}: {}, {}{}{}{}; {}",
                  {call, caller.rank, caller.device, name_of(code), nccl_category().message(static_cast<int>(code)),
                   error_text.empty() ? "" : " (last error: ", error_text, error_text.empty() ? "" : ")", remedy}),
      where);
  error.with_rank(caller.rank);
  return error;
}

}  // namespace DTRAIN_NAMESPACE::backend::nccl

#endif  // DTRAIN_WITH_NCCL
