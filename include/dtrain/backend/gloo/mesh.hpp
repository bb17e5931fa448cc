#pragma once
/// @file
/// gloo::Mesh: a channel's Gloo connections between all pairs of ranks, made through the store. Gloo's exceptions as
/// Error.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <exception>
#include <limits>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <vector>

#include "dtrain/async/thread.hpp"
#include "dtrain/backend/channel_context.hpp"
#include "dtrain/backend/channel_setup/store_gather.hpp"
#include "dtrain/core/config.hpp"
#include "dtrain/core/deadline.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/serializer.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/core/text/sanitize.hpp"
#include "dtrain/net/interfaces.hpp"
#include "dtrain/net/socket_address.hpp"
#include "dtrain/rendezvous/membership/membership.hpp"

namespace DTRAIN_NAMESPACE::backend::gloo {

/// Numeric address at which this rank listens; the first that applies:
/// - the address of DTRAIN_INTERFACE;
/// - 127.0.0.1 if all ranks share this host; ::1 if its loopback interface has only that;
/// - the address at which the store sees this rank;
/// - net::outward_address(), on the store's own host, where the store may see this rank by loopback.
/// @throws Error (unsupported) if this host has no address that others can reach
inline std::string device_address(const rendezvous::Membership& members) {
  if (!members.named_address.empty()) {
    return members.named_address;
  }
  if (members.other_host_rank < 0) {
    const bool has_only_v6 =
        !net::is_own(net::SocketAddress::loopback_v4(0)) && net::is_own(net::SocketAddress::loopback_v6(0));
    return has_only_v6 ? "::1" : "127.0.0.1";
  }
  if (!members.route_address.empty()) {
    return members.route_address;
  }
  const std::optional<net::SocketAddress> outward = net::outward_address();
  if (!outward) {
    throw_error(Errc::unsupported,
                "backend::Gloo finds no address of host {} that rank {} on host {} could reach; name an interface with "
                "DTRAIN_INTERFACE",
                {members.host, members.other_host_rank, members.other_host});
  }
  return outward->host();
}

}  // namespace DTRAIN_NAMESPACE::backend::gloo

#if DTRAIN_WITH_GLOO

#include <gloo/transport/context.h>
#include <gloo/transport/pair.h>
#include <gloo/transport/tcp/address.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/unbound_buffer.h>

/// dtrain uses only Gloo's TCP transport. Its relevant behaviour, read in its source (2022-05) and observed:
/// - A wait that times out closes every connection of its context. A wait that another thread aborts returns.
/// - Gloo has a thread for each device. An exception in it, for example for a message longer than its receive memory,
///   ends the process. Endpoint prevents such messages.
/// - Gloo calls writev, which raises SIGPIPE if the peer has closed. Hence dtrain calls Gloo with signals blocked.
/// - Programs that a rank starts inherit its descriptors.
namespace DTRAIN_NAMESPACE::backend::gloo {

/// Calls `work`. @param doing returns the beginning of the error sentence; called after a failure only
/// @throws Error (closed) for Gloo's exceptions: "doing: Gloo says ..."; Error and std::bad_alloc unchanged
template <class Doing, class Work>
decltype(auto) calling_gloo(const Doing& doing, const Work& work) {
  try {
    return work();
  } catch (const Error&) {
    throw;
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception& error) {
    throw_error(Errc::closed, "{}: Gloo says: {}", {doing(), sanitize(error.what())});
  }
}

/// The addresses at which a rank listens, as published in the store: one socket for each peer.
struct PeerInfo {
  int job_rank = 0;
  std::string host;               ///< host name
  std::string device;             ///< the numeric address of its sockets
  std::string outward;            ///< the address that other hosts reach its host by; empty if it has none
  std::size_t address_bytes = 0;  ///< size of one address, in Gloo's own format
  std::string addresses;          ///< concatenated, for the peers in rank order
};

inline void fields(Serializer& of, PeerInfo& info) {
  of.number(info.job_rank, 0, std::numeric_limits<int>::max());
  of.text(info.host, 256);
  of.text(info.device, 256);
  of.text(info.outward, 256);
  of.number(info.address_bytes);
  of.raw_text(info.addresses, std::size_t{64} << 20);  // the store bounds its values
}

/// Owns a Gloo device with its thread, and a Gloo context: closing the channel affects no other channel. The mesh
/// performs the steps of gloo::rendezvous::Context with a store, so that a failure of the job can interrupt them.
/// Threads: interrupt() from any; all others one at a time.
class Mesh {
 public:
  /// Listens for each peer. @throws Error (unsupported, closed)
  Mesh(const ChannelContext& context, Deadline deadline) : rank_(context.members.rank), name_(context.name) {
    const int size = context.members.world_size;
    const std::string address = device_address(context.members);
    const async::BlockedSignals blocked;  // signals that the device's thread inherits
    const auto open = [&] {
      device_ = ::gloo::transport::tcp::CreateDevice(::gloo::transport::tcp::attr(address.c_str()));
      gloo_context_ = device_->createContext(rank_, size);
      // To connect, Gloo waits for five times the timeout.
      gloo_context_->setTimeout(
          std::max(std::chrono::milliseconds(1),
                   std::chrono::duration_cast<std::chrono::milliseconds>(deadline.remaining()) / 5));
      for (int peer = 0; peer < size; ++peer) {
        if (peer != rank_) {
          gloo_context_->createPair(peer);
        }
      }
    };
    calling_gloo([&] { return format_text("opening channel '{}' at address {}", {name_, address}); }, open);
    own_.job_rank = context.reporting_rank();
    own_.host = context.members.host;
    own_.device = address;
    const std::optional<net::SocketAddress> outward = net::outward_address();
    own_.outward = !context.members.route_address.empty() ? context.members.route_address
                   : outward                              ? outward->host()
                                                          : "";
  }

  /// Collective, blocking: publishes this rank's addresses and reads those of the others.
  /// @throws Error (timeout, protocol), JobFailed
  void exchange_addresses(const ChannelContext& context, Deadline deadline) {
    const int size = gloo_context_->size;
    for (int peer = 0; peer < size; ++peer) {
      if (peer != rank_) {
        const std::vector<char> address = gloo_context_->getPair(peer)->address().bytes();
        own_.address_bytes = address.size();
        own_.addresses.append(address.begin(), address.end());
      }
    }
    const StoreRank self = StoreRank::of(context, deadline, doing());
    const auto key_of = [&](int rank) { return format_text("{}/gloo-{}", {name_, rank}); };
    if (size > 1) {
      self.named_store().set_blocking(key_of(rank_), to_bytes(own_), deadline);
    }
    int peer = 0;
    backend::detail::LateRanks late(self,
                                    [&] { return format_text("{} has not come so far", {self.name_of_rank(peer)}); });
    for (; peer < size; ++peer) {
      peers_.push_back(peer == rank_
                           ? own_
                           : from_bytes<PeerInfo>(backend::detail::take(self, key_of(peer), size - 1, deadline, late),
                                                  "a rank's addresses for Gloo"));
    }
  }

  /// Collective, blocking: until every peer is connected, or interrupt(). @throws Error (closed)
  void connect() {
    for (int peer = 0; peer < gloo_context_->size && !interrupted_.load(); ++peer) {
      if (peer != rank_) {
        awaited_.store(peer);
        const auto connect = [&] { gloo_context_->getPair(peer)->connect(address_of(peer)); };
        calling_gloo([&] { return format_text("{} at {}; {}", {doing(), own_.device, unconnected()}); }, connect);
      }
    }
  }

  /// "connecting channel 'group' over Gloo".
  std::string doing() const { return format_text("connecting channel '{}' over Gloo", {name_}); }

  /// Names the peer that connect() has not connected to, its address, and what to see to. Threads: any, while connect()
  /// runs and after it has failed.
  std::string unconnected() const {
    const int peer = std::max(0, awaited_.load());
    const PeerInfo& info = peers_[static_cast<std::size_t>(peer)];
    const net::SocketAddress at = socket_address_of(peer);
    return format_text(
        "{} has not connected with {} at {} {}",
        {to_string(rank_), to_string(peer), net::to_string(at),
         is_elsewhere(info)
             ? format_text(
                   "(this host's id is also rank {}'s, whose host has the address {}, which this one has not: if "
                   "they are two hosts, such as copies of one virtual machine, set another DTRAIN_HOST_ID on each)",
                   {info.job_rank, info.outward})
         : at.is_loopback() ? "(does a firewall forbid this host's processes to connect with one another?)"
                            : "(any port: Gloo listens at one for each pair; does a firewall let the "
                              "hosts reach each other at all ports?)"});
  }

  /// Collective, blocking: until every rank is connected with every other. Otherwise a rank that leaves the channel
  /// early would break connections that others still wait for. @throws Error (timeout), JobFailed
  void await_all(const ChannelContext& context, Deadline deadline) const {
    StoreRank self = StoreRank::of(context, deadline, doing());
    self.name_of_rank = [this](int peer) { return to_string(peer); };
    self.late =
        "is not connected with all others by the deadline; can every host of the job reach every other one, at all "
        "ports?";
    const auto empty = [](const auto&...) { return std::string(); };
    store_gather(self, name_ + "/gloo-connected", empty, empty);
  }

  /// Closes all connections: connect() returns soon, and peers find their connections reset. Blocking: up to 10 ms for
  /// each connection, the polling period of Gloo's thread.
  void interrupt() noexcept {
    interrupted_.store(true);
    for (int peer = 0; peer < gloo_context_->size; ++peer) {
      try {
        if (peer != rank_) {
          gloo_context_->getPair(peer)->close();
        }
      } catch (...) {  // the destructor of Gloo's context cleans up
      }
    }
  }

  ::gloo::transport::Context& gloo_context() const noexcept { return *gloo_context_; }

  /// "rank 3 on host b".
  std::string to_string(int peer) const {
    const PeerInfo& info = peers_[static_cast<std::size_t>(peer)];
    return format_text("rank {} on host {}", {info.job_rank, info.host});
  }

 private:
  /// Address at which `peer` listens for this rank. A rank's list omits itself.
  std::vector<char> address_of(int peer) const {
    const PeerInfo& info = peers_[static_cast<std::size_t>(peer)];
    const std::size_t ranks = peers_.size();
    if (info.address_bytes != own_.address_bytes || info.addresses.size() != (ranks - 1) * info.address_bytes) {
      throw_error(Errc::disagreement,
                  "channel '{}': {} uses another address format than rank {}; use one version of Gloo on all hosts",
                  {name_, to_string(peer), own_.job_rank});
    }
    const auto offset = static_cast<std::size_t>(rank_ < peer ? rank_ : rank_ - 1) * info.address_bytes;
    const auto begin = info.addresses.begin() + static_cast<std::ptrdiff_t>(offset);
    return {begin, begin + static_cast<std::ptrdiff_t>(info.address_bytes)};
  }

  net::SocketAddress socket_address_of(int peer) const {
    const ::gloo::transport::tcp::Address address(address_of(peer));
    const auto* const system = reinterpret_cast<const sockaddr*>(&address.getSockaddr());
    return net::SocketAddress::from_system(system, sizeof(sockaddr_storage)).value_or(net::SocketAddress{});
  }

  /// Whether a peer that listens at the loopback address is on another host, which has the same host id.
  static bool is_elsewhere(const PeerInfo& info) {
    const std::optional<net::SocketAddress> outward = net::SocketAddress::from_numeric(info.outward, 0);
    return outward && net::is_loopback_host(info.device) && !net::is_own(*outward);
  }

  const int rank_;
  const std::string name_;
  PeerInfo own_;
  std::vector<PeerInfo> peers_;
  std::atomic<bool> interrupted_{false};
  std::atomic<int> awaited_{-1};  ///< the peer that connect() connects to
  std::shared_ptr<::gloo::transport::Device> device_;
  std::shared_ptr<::gloo::transport::Context> gloo_context_;  ///< destroyed before its device
};

}  // namespace DTRAIN_NAMESPACE::backend::gloo

#endif  // DTRAIN_WITH_GLOO
