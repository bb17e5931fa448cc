#pragma once
/// @file
/// Host identity of a job's member: boot id and network namespace; equal ids mean one host.

#include <sys/stat.h>
#include <sys/utsname.h>

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "dtrain/core/error.hpp"
#include "dtrain/core/process/system_files.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/rendezvous/limits.hpp"

namespace DTRAIN_NAMESPACE::rendezvous {

/// Identity of a rank's host. Ranks compare `id` only.
struct HostIdentity {
  std::string id;    ///< two ranks share a host exactly if their ids are equal
  std::string name;  ///< host name, for error sentences only: two hosts may have one name, one host two names
};

/// Host id of its two parts: "5f3a\n" and "4026531840" give "5f3a/net:4026531840". Pure, for tests on one machine.
inline std::string host_id_of(std::string_view boot_id, std::string_view network_namespace) {
  const std::size_t end = boot_id.find_last_not_of(" \t\r\n");
  std::string id(boot_id.substr(0, end == std::string_view::npos ? 0 : end + 1));
  id.append("/net:").append(network_namespace);
  return id;
}

/// Identity of this host. All containers of a machine share the boot id, but not the inode of the network namespace.
/// The host name replaces each part that the system does not provide.
/// @param override_id value of DTRAIN_HOST_ID, which the caller reads; if not empty, it is the host id, unchanged
/// @throws Error (posix) if the system does not provide the host name; Error (invalid_argument) if the override has
/// more than max_name_bytes characters
inline HostIdentity host_identity(const std::optional<std::string>& override_id = std::nullopt) {
  struct ::utsname system {};
  if (::uname(&system) != 0) {
    throw errno_error("asking for the name of this host");
  }
  HostIdentity host;
  host.name = static_cast<const char*>(system.nodename);
  host.name.resize(std::min(host.name.size(), max_name_bytes));
  if (override_id && !override_id->empty()) {
    if (override_id->size() > max_name_bytes) {
      throw_error(Errc::invalid_argument, "DTRAIN_HOST_ID has {} characters; at most {} are allowed",
                  {override_id->size(), max_name_bytes});
    }
    host.id = *override_id;
    return host;
  }
  const std::string boot_id = read_small_file("/proc/sys/kernel/random/boot_id", 128).value_or("");
  struct ::stat space {};
  const bool has_namespace = ::stat("/proc/self/ns/net", &space) == 0;
  host.id = host_id_of(boot_id.empty() ? format_text("name:{}", {host.name}) : boot_id,
                       has_namespace ? std::to_string(space.st_ino) : format_text("name:{}", {host.name}));
  return host;
}

}  // namespace DTRAIN_NAMESPACE::rendezvous
