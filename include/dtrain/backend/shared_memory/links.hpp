#pragma once
/// @file
/// The Unix connections between rank 0 and every other rank of a channel.

#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "dtrain/backend/channel_context.hpp"
#include "dtrain/backend/shared_memory/callers.hpp"
#include "dtrain/backend/shared_memory/door.hpp"
#include "dtrain/backend/shared_memory/message.hpp"
#include "dtrain/core/cause.hpp"
#include "dtrain/core/deadline.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/failure_latch.hpp"
#include "dtrain/net/unix_socket.hpp"
#include "dtrain/rendezvous/random.hpp"

namespace DTRAIN_NAMESPACE::backend::shared_memory {

/// A star around rank 0. Nothing remains of it in the file system, and nothing at all after the last process.
class Links {
 public:
  /// Collective, blocking. Rank 0 listens under a random name that it publishes in the store; a token that only the
  /// store knows keeps strangers out. @throws Error, JobFailed
  static Links open(const ChannelContext& context, Deadline deadline) {
    Links links(context);
    if (links.rank_ == 0 && links.size_ > 1) {
      links.accept_all_or_tell(context, deadline);
    } else if (links.rank_ != 0) {
      links.connect(context, deadline);
    }
    return links;
  }

  int rank() const noexcept { return rank_; }
  int size() const noexcept { return size_; }

  /// A rank's number in the job, for sentences.
  int job_rank(int rank) const noexcept { return members_.rank_in_job(rank); }

  /// On rank 0: to that peer. Elsewhere: to rank 0.
  Link& link(int peer) noexcept { return *links_[rank_ == 0 ? static_cast<std::size_t>(peer - 1) : 0]; }

  /// `check` throws when waiting has become pointless; it is asked every 20 ms.
  void set_check(std::function<void()> check) { check_ = std::move(check); }

  /// The message of that kind in the `number`-th exchange; what is left of earlier exchanges is passed over.
  /// Blocking. @throws Error (timeout, closed, protocol), the error that the other side tells instead, what the check
  /// throws
  Message receive(int peer, MessageKind kind, std::uint64_t number, Deadline deadline) {
    return with_context(peer, [&] {
      for (;;) {
        wait_readable(link(peer).connection.descriptor(), deadline);
        const Message message = message_from(link(peer).connection.receive(deadline));
        if (message.number < number) {
          continue;
        }
        if (message.number == number && message.kind == kind) {
          return message;
        }
        if (message.number == number && message.kind == MessageKind::verdict) {
          message.throw_if_error();
        }
        throw Error(Errc::protocol,
                    "another message came than was its turn; do all ranks open the same channels and "
                    "allocate the same memory in the same order?");
      }
    });
  }

  /// Blocking. @throws as receive
  net::Descriptor receive_descriptor(int peer, Deadline deadline) {
    return with_context(peer, [&] {
      wait_readable(link(peer).connection.descriptor(), deadline);
      return std::move(link(peer).connection.receive_descriptor(deadline).descriptor);
    });
  }

  /// Blocking: hardly; a message fits the socket. @throws Error
  void send(int peer, const Message& message, Deadline deadline) {
    with_context(peer, [&] { link(peer).connection.send(message.as_bytes(), deadline); });
  }

  /// To rank 0, whose answer is received next: where it has gone, what it said before tells more than that it went.
  void send_before_receiving(const Message& message, Deadline deadline) {
    try {
      link(0).connection.send(message.as_bytes(), deadline);
    } catch (const Error& error) {
      if (error.code() != make_error_code(Errc::closed)) {
        throw;
      }
    }
  }

  /// @throws as send. The caller keeps `descriptor`.
  void send_descriptor(int peer, int descriptor, Deadline deadline) {
    const std::byte one{1};
    with_context(peer, [&] { link(peer).connection.send_descriptor(descriptor, std::span(&one, 1), deadline); });
  }

 private:
  explicit Links(const ChannelContext& context)
      : rank_(context.members.rank),
        size_(context.members.world_size),
        channel_(context.name),
        members_(context.members),
        failure_(context.failure),
        check_([failure = context.failure, rank = context.reporting_rank()] { failure->throw_if_failed(rank); }) {}

  static std::string door_key(const ChannelContext& context) { return context.name + "/shared_memory"; }

  /// Those who have come learn why it failed, before they see a closed connection.
  void accept_all_or_tell(const ChannelContext& context, Deadline deadline) {
    try {
      accept_all(context, deadline);
    } catch (const Error& error) {
      Message verdict;
      verdict.kind = MessageKind::verdict;
      verdict.number = 1;
      verdict.set_error(error);
      for (std::optional<Link>& link : links_) {
        try {
          if (link) {
            link->connection.send(verdict.as_bytes(), Deadline::after(std::chrono::seconds(1)));
          }
        } catch (const Error&) {
          // It has gone, and has a reason of its own.
        }
      }
      throw;
    }
  }

  void accept_all(const ChannelContext& context, Deadline deadline) {
    const Door door{"dtrain-" + rendezvous::random_job_id(), rendezvous::random_job_id()};
    std::optional<Callers> callers;
    try {
      callers.emplace(net::UnixListener(door.name), static_cast<std::size_t>(size_) + most_strangers);
    } catch (const Error& error) {
      context.store.set_blocking(door_key(context), Door::error_text(job_rank(0), error), deadline);
      throw;
    }
    context.store.set_blocking(door_key(context), door.to_text(), deadline);
    links_.resize(static_cast<std::size_t>(size_ - 1));
    int arrived = 0;
    while (arrived < size_ - 1) {
      wait_for_callers(callers->waiting(), deadline);
      callers->serve([&](Link caller, const std::vector<std::byte>& greeting) {
        arrived += admit(std::move(caller), greeting, door.token) ? 1 : 0;
      });
    }
    context.store.erase_blocking(door_key(context), deadline);
  }

  /// @returns false for a stranger
  bool admit(Link caller, const std::vector<std::byte>& bytes, const std::string& token) {
    try {
      const Message greeting = message_from(bytes);
      if (greeting.kind != MessageKind::greeting || !std::equal(token.begin(), token.end(), greeting.token.begin()) ||
          greeting.rank <= 0 || greeting.rank >= size_ || links_[static_cast<std::size_t>(greeting.rank - 1)]) {
        return false;
      }
      links_[static_cast<std::size_t>(greeting.rank - 1)].emplace(std::move(caller));
      return true;
    } catch (const Error&) {
      return false;
    }
  }

  void connect(const ChannelContext& context, Deadline deadline) {
    const Door door = Door::from(context.store.get_blocking(door_key(context), deadline), context.name);
    with_context(0, [&] { links_.emplace_back(std::in_place, net::UnixConnection::connect(door.name, deadline)); });
    Message greeting;
    greeting.rank = rank_;
    std::copy(door.token.begin(), door.token.end(), greeting.token.begin());
    send(0, greeting, deadline);
  }

  void wait_for_callers(std::span<pollfd> waiting, Deadline deadline) const {
    try {
      wait_readable(waiting, deadline);
    } catch (const JobFailed&) {
      throw;
    } catch (const Error& error) {
      throw Error(error.code(), doing() + ", waiting for rank " + missing() + ": " + error.what());
    }
  }

  /// Waits in slices, so that the check can end it. @throws what the check throws, Error (timeout, posix)
  void wait_readable(int descriptor, Deadline deadline) const {
    pollfd entry{descriptor, POLLIN, 0};
    wait_readable(std::span(&entry, 1), deadline);
  }
  void wait_readable(std::span<pollfd> entries, Deadline deadline) const {
    for (;;) {
      check_();
      const bool last = deadline.passed();
      const int count = ::poll(entries.data(), entries.size(), 20);
      if (count > 0) {
        return;
      }
      if (count < 0 && errno != EINTR) {
        throw errno_error("waiting for a Unix socket");
      }
      if (last) {
        throw Error(Errc::timeout, "the deadline passed");
      }
    }
  }

  std::string missing() const {
    std::string ranks;
    for (int peer = 1; peer < size_; ++peer) {
      if (!links_[static_cast<std::size_t>(peer - 1)]) {
        ranks += (ranks.empty() ? "" : ", ") + std::to_string(job_rank(peer));
      }
    }
    return ranks;
  }

  std::string doing() const { return "setting up shared memory for channel '" + channel_ + "'"; }

  /// A socket's error says what went wrong; this says with whom. What the job's first cause, or rank 0, says stays as
  /// it is.
  template <class F>
  auto with_context(int peer, F call) const -> decltype(call()) {
    try {
      return call();
    } catch (const JobFailed&) {
      throw;
    } catch (const ToldError&) {
      throw;
    } catch (const Error& error) {
      if (error.code() != make_error_code(Errc::timeout)) {
        failure_->block_until_failed(Deadline::after(std::chrono::milliseconds(500)));  // a peer that went has said why
      }
      check_();
      throw Error(error.code(), doing() + " with rank " + std::to_string(job_rank(peer)) + ": " + error.what());
    }
  }

  static constexpr std::size_t most_strangers = 16;

  int rank_;
  int size_;
  std::string channel_;
  rendezvous::Membership members_;
  std::shared_ptr<FailureLatch> failure_;
  std::function<void()> check_;
  std::vector<std::optional<Link>> links_;
};

}  // namespace DTRAIN_NAMESPACE::backend::shared_memory
