#pragma once
/// @file
/// remedy_of(): what to do about an error of NCCL whose own text does not say it.

#include <sys/statvfs.h>

#include <cerrno>
#include <string>
#include <string_view>
#include <system_error>

#include "dtrain/core/config.hpp"
#include "dtrain/core/text/format_text.hpp"

namespace DTRAIN_NAMESPACE::backend::nccl {

/// "/dev/shm has 12 MB free of 64 MB; NCCL needs ...". NCCL reserves its proxy's pool there when it connects ranks of
/// several nodes (src/proxy.cc, ncclProxyOpsPool: 2048 x 72 entries of 232 bytes).
inline std::string shared_memory_remedy(const std::string& folder = "/dev/shm") {
  struct statvfs space {};
  const int result = ::statvfs(folder.c_str(), &space);
  const auto megabytes = [&](auto blocks) {
    return static_cast<unsigned long long>(blocks) * space.f_frsize / 1'000'000;
  };
  const std::string has =
      result == 0 ? format_text("has {} MB free of {} MB", {megabytes(space.f_bavail), megabytes(space.f_blocks)})
                  : format_text("cannot be read ({})", {std::generic_category().message(errno)});
  return format_text(
      "{} {}; NCCL needs about 34 MB there for each rank and communicator when ranks are on several nodes "
      "(docker run --shm-size=1g or --ipc=host)",
      {folder, has});
}

/// The remedy in place of, or after, the general one.
/// @param is_system_error whether the code is ncclSystemError
/// @param error_text NCCL's last error
inline std::string remedy_of(bool is_system_error, std::string_view error_text, const std::string& general) {
  if (error_text.find("racing") != std::string_view::npos) {  // src/misc/strongstream.cc, launchRaceFatalMsg
    return "one thread at a time may launch NCCL operations on a device, dtrain's or others': let the threads take "
           "turns in one order on all ranks, or set NCCL_LAUNCH_RACE_FATAL=0, after which no order between them is "
           "kept";
  }
  return is_system_error ? general + "; " + shared_memory_remedy() : general;
}

}  // namespace DTRAIN_NAMESPACE::backend::nccl
