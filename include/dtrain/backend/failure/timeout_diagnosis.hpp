#pragma once
/// @file
/// TimeoutDiagnosis: whether a collective timed out although all ranks called it, because the network loses their data.

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "dtrain/backend/channel_context.hpp"
#include "dtrain/backend/operation.hpp"
#include "dtrain/backend/store_ref.hpp"
#include "dtrain/core/config.hpp"
#include "dtrain/core/deadline.hpp"
#include "dtrain/core/failure_latch.hpp"
#include "dtrain/core/serializer.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/net/interfaces.hpp"
#include "dtrain/rendezvous/membership/membership.hpp"

namespace DTRAIN_NAMESPACE::backend {

namespace detail {

/// The place of a rank that has timed out, which it publishes.
struct TimedOutRank {
  std::string host;
  std::string address;  ///< the address of its host for other hosts; empty: unknown
  std::string call;     ///< "barrier"
  std::uint64_t sequence = 0;
  int awaited = 0;  ///< rank of the channel

  std::string host_text() const { return address.empty() ? host : format_text("{} ({})", {host, address}); }
};

inline void fields(Serializer& of, TimedOutRank& rank) {
  of.text(rank.host, 256);
  of.text(rank.address, 256);
  of.text(rank.call, 256);
  of.number(rank.sequence);
  of.number(rank.awaited, 0, std::numeric_limits<int>::max());
}

inline std::string outward_address_of(const rendezvous::Membership& members) {
  if (members.other_host_rank < 0) return {};
  if (!members.named_address.empty()) return members.named_address;
  if (!members.route_address.empty()) return members.route_address;
  const std::optional<net::SocketAddress> outward = net::outward_address();
  return outward ? outward->host() : std::string();
}

}  // namespace detail

/// A rank that times out notifies the others over the store, whose connection may live where those of the data do not.
/// Threads: one at a time. A template, so that a program without a backend over messages compiles nothing of it.
template <class = void>
class TimeoutDiagnosis {
 public:
  /// For ranks that have begun the operation, and so time out, one after the other.
  static constexpr std::chrono::seconds longest_wait{3};

  explicit TimeoutDiagnosis(const ChannelContext& context)
      : store_(context.store),
        failure_(context.failure),
        members_(context.members),
        name_(context.name),
        timeout_(context.timeout) {}

  /// Blocking: until all ranks of the channel have timed out in a collective; longest_wait, or a third of the timeout,
  /// at most. The channel fails afterwards, so its keys may stay.
  /// @param awaited rank of the channel that this one waits for; -1: unknown
  /// @param backend "backend::Gloo"
  /// @returns what does not get through, and what to see to; empty if a rank has not called the operation, is in one of
  /// another channel, or the job has failed
  DTRAIN_NOT_INLINED std::string lost_data_blocking(const Operation& operation, int awaited,
                                                    std::string_view backend) const noexcept {
    const int size = members_.world_size;
    if (operation.sequence == 0 || awaited < 0 || awaited >= size || awaited == members_.rank) {
      return {};
    }
    try {
      const Deadline deadline = Deadline::after(std::min<std::chrono::nanoseconds>(timeout_ / 3, longest_wait));
      const StoreRef store = store_.with_purpose("comparing in what the ranks wait");
      const auto key_of = [&](int rank) { return format_text("{}/timeout/{}", {name_, rank}); };
      const auto place_of = [&](int rank) {
        return from_bytes<detail::TimedOutRank>(store.get_blocking(key_of(rank), deadline), "what a rank waits in");
      };
      detail::TimedOutRank own{members_.host, detail::outward_address_of(members_), to_string(operation),
                               operation.sequence, awaited};
      store.set_blocking(key_of(members_.rank), to_bytes(own), deadline);
      if (store.add_blocking(name_ + "/timeout/count", 1, deadline) == size) {
        std::uint64_t first = own.sequence;
        for (int rank = 0; rank < size; ++rank) {
          first = std::min(first, place_of(rank).sequence);
        }
        store.set_blocking(name_ + "/timeout/first", to_bytes(first), deadline);
      }
      const auto first = from_bytes<std::uint64_t>(store.get_blocking(name_ + "/timeout/first", deadline),
                                                   "the first operation that timed out");
      const detail::TimedOutRank peer = place_of(awaited);
      if (first < own.sequence) {  // a rank in an earlier operation has the cause
        failure_->block_until_failed(Deadline::after(std::chrono::seconds(1)));
        return {};
      }
      if (peer.sequence == own.sequence && peer.call != own.call) {
        return {};
      }
      const int low = members_.rank_in_job(std::min(members_.rank, awaited));
      const int high = members_.rank_in_job(std::max(members_.rank, awaited));
      const std::string who = size == 2 ? format_text("ranks {} and {} have both", {low, high})
                                        : format_text("all {} ranks of the channel have", {size});
      if (own.host_text() == peer.host_text()) {
        return format_text(
            "{} called it, and {}do not get each other's data on host {}, although the store's connection lives: see "
            "whether both run, and whether a firewall of that host lets its processes connect",
            {who, size == 2 ? std::string() : format_text("ranks {} and {} ", {low, high}), own.host});
      }
      const detail::TimedOutRank& lower = members_.rank < awaited ? own : peer;
      const detail::TimedOutRank& higher = members_.rank < awaited ? peer : own;
      const bool is_between_both = size == 2 || peer.awaited == members_.rank;
      return format_text(
          "{} called it, and data does not get through between {}host {} and host {}{} although the "
          "store's connection lives: see the MTU (ping -M do -s 8972), firewalls that drop idle "
          "connections, and the ports of {}",
          {who, size == 2 ? std::string() : format_text("ranks {} and {}, ", {low, high}), lower.host_text(),
           higher.host_text(), is_between_both ? "" : ", or between others for which they wait,", backend});
    } catch (...) {  // not all ranks have called it, or the job has failed
      return {};
    }
  }

 private:
  const StoreRef store_;
  const std::shared_ptr<FailureLatch> failure_;
  const rendezvous::Membership members_;
  const std::string name_;
  const std::chrono::nanoseconds timeout_;
};

}  // namespace DTRAIN_NAMESPACE::backend
