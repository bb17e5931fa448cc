#pragma once
/// @file
/// net::SocketAddress: a numeric IPv4 or IPv6 address with a port.

#include <arpa/inet.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>

#include "dtrain/core/config.hpp"
#include "dtrain/core/text/format_text.hpp"

namespace DTRAIN_NAMESPACE::net {

/// A value of 28 bytes, compared by family, address, port and scope.
class SocketAddress {
 public:
  SocketAddress() noexcept { storage_.v4.sin_family = AF_INET; }

  static SocketAddress any_v4(std::uint16_t port) noexcept { return v4(INADDR_ANY, port); }
  static SocketAddress loopback_v4(std::uint16_t port) noexcept { return v4(INADDR_LOOPBACK, port); }
  static SocketAddress any_v6(std::uint16_t port) noexcept { return v6(in6addr_any, port); }
  static SocketAddress loopback_v6(std::uint16_t port) noexcept { return v6(in6addr_loopback, port); }

  /// From "192.0.2.1", "2001:db8::1", "[2001:db8::1]" or "fe80::1%eth0"; nullopt for a name or any other text.
  static std::optional<SocketAddress> from_numeric(std::string_view host, std::uint16_t port) {
    if (host.size() >= 2 && host.front() == '[' && host.back() == ']') {
      host = host.substr(1, host.size() - 2);
      if (host.find(':') == std::string_view::npos) {
        return std::nullopt;
      }
    }
    const std::size_t percent = host.find('%');
    const std::string address(host.substr(0, percent));
    if (address.find('\0') != std::string::npos) {
      return std::nullopt;
    }
    in_addr four{};
    if (percent == std::string_view::npos && ::inet_pton(AF_INET, address.c_str(), &four) == 1) {
      return v4(ntohl(four.s_addr), port);
    }
    in6_addr six{};
    if (::inet_pton(AF_INET6, address.c_str(), &six) != 1) {
      return std::nullopt;
    }
    SocketAddress result = v6(six, port);
    if (percent != std::string_view::npos) {
      result.storage_.v6.sin6_scope_id = ::if_nametoindex(std::string(host.substr(percent + 1)).c_str());
      if (result.storage_.v6.sin6_scope_id == 0) {
        return std::nullopt;
      }
    }
    return result;
  }

  /// From an address of a system call; nullopt for another family.
  static std::optional<SocketAddress> from_system(const sockaddr* address, socklen_t size) noexcept {
    SocketAddress result;
    const bool is_v4 = size >= sizeof(sockaddr_in) && address->sa_family == AF_INET;
    const bool is_v6 = size >= sizeof(sockaddr_in6) && address->sa_family == AF_INET6;
    if (!is_v4 && !is_v6) {
      return std::nullopt;
    }
    std::memcpy(&result.storage_, address, is_v4 ? sizeof(sockaddr_in) : sizeof(sockaddr_in6));
    return result;
  }

  /// System call for one end of a socket: ::getsockname or ::getpeername.
  using End = int (*)(int, sockaddr*, socklen_t*);

  /// The address of one end of a socket; nullopt if the system has none, or one of another family.
  static std::optional<SocketAddress> of_socket(int descriptor, End end) noexcept {
    sockaddr_storage storage{};
    auto* const found = reinterpret_cast<sockaddr*>(&storage);
    socklen_t size = sizeof storage;
    return end(descriptor, found, &size) == 0 ? from_system(found, size) : std::nullopt;
  }

  bool is_v6() const noexcept { return storage_.any.sa_family == AF_INET6; }
  int family() const noexcept { return storage_.any.sa_family; }
  std::uint16_t port() const noexcept { return ntohs(is_v6() ? storage_.v6.sin6_port : storage_.v4.sin_port); }

  SocketAddress with_port(std::uint16_t port) const noexcept {
    SocketAddress changed = *this;
    (is_v6() ? changed.storage_.v6.sin6_port : changed.storage_.v4.sin_port) = htons(port);
    return changed;
  }

  /// 127.0.0.0/8, ::1, and the former mapped to IPv6.
  bool is_loopback() const noexcept {
    if (!is_v6()) {
      return (ntohl(storage_.v4.sin_addr.s_addr) >> 24) == 127;
    }
    const in6_addr& address = storage_.v6.sin6_addr;
    return IN6_IS_ADDR_LOOPBACK(&address) || (IN6_IS_ADDR_V4MAPPED(&address) && address.s6_addr[12] == 127);
  }

  /// 0.0.0.0 or ::.
  bool is_any() const noexcept {
    return is_v6() ? IN6_IS_ADDR_UNSPECIFIED(&storage_.v6.sin6_addr) != 0 : storage_.v4.sin_addr.s_addr == INADDR_ANY;
  }

  /// 169.254.0.0/16 and fe80::/10: valid in one network, and useless to other hosts without an interface.
  bool is_link_local() const noexcept {
    return is_v6() ? IN6_IS_ADDR_LINKLOCAL(&storage_.v6.sin6_addr) != 0
                   : (ntohl(storage_.v4.sin_addr.s_addr) >> 16) == 0xA9FE;
  }

  /// The IPv4 address of an IPv4-mapped IPv6 address (::ffff:192.0.2.1), in which form a dual-stack socket reports
  /// peers; other addresses unchanged.
  SocketAddress unmapped() const noexcept {
    if (!is_v6() || !IN6_IS_ADDR_V4MAPPED(&storage_.v6.sin6_addr)) {
      return *this;
    }
    std::uint32_t address = 0;
    std::memcpy(&address, &storage_.v6.sin6_addr.s6_addr[12], sizeof address);
    return v4(ntohl(address), port());
  }

  /// "192.0.2.1", "2001:db8::1", "fe80::1%2".
  std::string host() const {
    char text[INET6_ADDRSTRLEN] = {};
    const void* address = is_v6() ? static_cast<const void*>(&storage_.v6.sin6_addr) : &storage_.v4.sin_addr;
    if (::inet_ntop(family(), address, text, sizeof text) == nullptr) {
      return "?";
    }
    const bool scoped = is_v6() && storage_.v6.sin6_scope_id != 0;
    return scoped ? format_text("{}%{}", {text, storage_.v6.sin6_scope_id}) : std::string(text);
  }

  const sockaddr* data() const noexcept { return &storage_.any; }
  socklen_t size() const noexcept { return is_v6() ? sizeof(sockaddr_in6) : sizeof(sockaddr_in); }

  DTRAIN_NOT_INLINED friend bool operator==(const SocketAddress& a, const SocketAddress& b) noexcept {
    if (a.family() != b.family() || a.port() != b.port()) {
      return false;
    }
    return a.is_v6() ? std::memcmp(&a.storage_.v6.sin6_addr, &b.storage_.v6.sin6_addr, sizeof(in6_addr)) == 0 &&
                           a.storage_.v6.sin6_scope_id == b.storage_.v6.sin6_scope_id
                     : a.storage_.v4.sin_addr.s_addr == b.storage_.v4.sin_addr.s_addr;
  }

 private:
  static SocketAddress v4(std::uint32_t address, std::uint16_t port) noexcept {
    SocketAddress result;
    result.storage_.v4.sin_addr.s_addr = htonl(address);
    result.storage_.v4.sin_port = htons(port);
    return result;
  }
  static SocketAddress v6(const in6_addr& address, std::uint16_t port) noexcept {
    SocketAddress result;
    result.storage_.v6.sin6_family = AF_INET6;
    result.storage_.v6.sin6_addr = address;
    result.storage_.v6.sin6_port = htons(port);
    return result;
  }

  union {
    sockaddr any;
    sockaddr_in v4;
    sockaddr_in6 v6;
  } storage_{.v6 = {}};
};

/// Whether a host is "localhost" or a loopback address.
inline bool is_loopback_host(std::string_view host) {
  const std::optional<SocketAddress> address = SocketAddress::from_numeric(host, 0);
  return host == "localhost" || (address && address->is_loopback());
}

/// Whether a host is 0.0.0.0 or ::, where a server listens on every interface and other hosts cannot connect.
inline bool is_any_host(std::string_view host) {
  const std::optional<SocketAddress> address = SocketAddress::from_numeric(host, 0);
  return address && address->unmapped().is_any();
}

/// "192.0.2.1:80", "[2001:db8::1]:80".
inline std::string to_string(const SocketAddress& address) {
  return address.is_v6() ? format_text("[{}]:{}", {address.host(), address.port()})
                         : format_text("{}:{}", {address.host(), address.port()});
}

}  // namespace DTRAIN_NAMESPACE::net
