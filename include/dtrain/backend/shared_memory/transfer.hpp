#pragma once
/// @file
/// Point to point in shared memory: messages go through the sender's outbox, piece by piece.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "dtrain/backend/shared_memory/channel.hpp"
#include "dtrain/backend/shared_memory/outbox_part.hpp"
#include "dtrain/core/cause.hpp"
#include "dtrain/kernels/copy.hpp"
#include "dtrain/kernels/stream_copy.hpp"

namespace DTRAIN_NAMESPACE::backend::shared_memory {

/// A send, a receive, or both at once, which then never wait for each other. A send is over when its last piece is in
/// the outbox: a message of up to outbox_parts pieces does not wait for its receiver, if the outbox is empty.
struct Transfer {
  const std::byte* input;
  std::byte* output;
  std::uint64_t input_count;
  std::uint64_t output_count;
  DType input_dtype;
  DType output_dtype;
  std::int32_t to;    ///< -1: nothing is sent
  std::int32_t from;  ///< -1: nothing is received

  void operator()(Channel& channel, const Operation& /*operation*/) const noexcept {
    Run run(*this, channel);
    while (run.moves_on()) {
      if (!channel.wait(run)) {
        return;
      }
    }
  }

 private:
  /// One execution on one rank; while nothing can be done it is what Channel::wait waits for.
  class Run {
   public:
    Run(const Transfer& work, Channel& channel) noexcept
        : work_(work),
          channel_(channel),
          unsent_(work.to >= 0),
          unreceived_(work.from >= 0),
          sent_number_(unsent_ ? ++channel.sent_to(work.to) : 0),
          received_number_(unreceived_ ? ++channel.received_from(work.from) : 0) {}

    /// Does what can be done now. @returns whether something is left that can yet be done.
    bool moves_on() noexcept {
      while (!channel_.aborted()) {
        OutboxPart* const free = free_part();
        OutboxPart* const filled = filled_part();
        if (free != nullptr) {
          send_piece(*free);
        }
        if (filled != nullptr) {
          receive_piece(*filled);
        }
        if (free == nullptr && filled == nullptr) {
          return unsent_ || unreceived_;
        }
      }
      return false;
    }

    bool done() const noexcept { return free_part() != nullptr || filled_part() != nullptr; }
    int peer() const noexcept { return unreceived_ ? work_.from : work_.to; }
    bool may_sleep() const noexcept { return !done() && gone() < 0; }
    Doorbell& bell() const noexcept { return channel_.control().slot(channel_.rank()).mail; }

    template <class Present>
    std::optional<Cause> spoilt(const Present& present) const {
      for (int rank = 0; rank < channel_.size(); ++rank) {
        const Slot& slot = channel_.control().slot(rank);
        if (slot.state.load() == SlotState::failed) {
          return slot.cause.load();
        }
      }
      const int peer = gone();
      if (peer >= 0 && !done()) {
        return Cause{CauseKind::disagreement, -1, "",
                     present() + " cannot be finished: rank " + std::to_string(job_rank(peer)) +
                         " has left the channel without its part of it"};
      }
      return std::nullopt;
    }

    std::string missing(std::chrono::milliseconds waited) const {
      const std::string after = " after " + std::to_string(waited.count()) + " ms";
      return unreceived_ ? "rank " + std::to_string(job_rank(work_.from)) + " had not sent all of it" + after
                         : "rank " + std::to_string(job_rank(work_.to)) + " had not taken what was sent before" +
                               after + "; where ranks send to each other before they receive, use send_recv";
    }

   private:
    bool left(int peer) const noexcept { return channel_.control().slot(peer).state.load() != SlotState::serving; }

    /// A peer that is still needed and has left; -1 where there is none.
    int gone() const noexcept {
      return unsent_ && left(work_.to) ? work_.to : unreceived_ && left(work_.from) ? work_.from : -1;
    }

    int job_rank(int peer) const noexcept { return channel_.control().job_rank(peer); }

    /// A place for the next piece; null where nothing is left to send or none is free.
    OutboxPart* free_part() const noexcept {
      if (unsent_) {
        for (OutboxPart& part : channel_.control().slot(channel_.rank()).outbox) {
          if (part.owner.load() == 0) {
            return &part;
          }
        }
      }
      return nullptr;
    }

    /// The next piece for this rank; null where none is expected or it has not come.
    OutboxPart* filled_part() const noexcept {
      if (unreceived_) {
        for (OutboxPart& part : channel_.control().slot(work_.from).outbox) {
          if (part.owner.load() == mark(channel_.rank()) && part.message == received_number_ &&
              part.offset == received_bytes_) {
            return &part;
          }
        }
      }
      return nullptr;
    }

    void send_piece(OutboxPart& part) noexcept {
      const std::size_t bytes = work_.input_count * size_bytes(work_.input_dtype);
      const std::size_t piece = std::min(outbox_part_bytes, bytes - sent_bytes_);
      const auto copy = piece <= slot_bytes ? &kernels::copy_bytes : &kernels::stream_bytes;
      copy(payload(channel_.rank(), part), work_.input + sent_bytes_, piece);
      part.message = sent_number_;
      part.offset = sent_bytes_;
      part.count = work_.input_count;
      part.dtype = work_.input_dtype;
      part.owner.store(mark(work_.to));
      channel_.control().slot(work_.to).mail.ring();
      sent_bytes_ += piece;
      unsent_ = sent_bytes_ < bytes;
    }

    void receive_piece(OutboxPart& part) noexcept {
      if (part.count != work_.output_count || part.dtype != work_.output_dtype) {
        channel_.fail({CauseKind::disagreement, -1, "",
                       "on channel '" + channel_.name() + "', rank " + std::to_string(job_rank(work_.from)) +
                           " sends " + std::to_string(part.count) + " " + name(part.dtype) + " and rank " +
                           std::to_string(channel_.job_rank()) + " receives " + std::to_string(work_.output_count) +
                           " " + name(work_.output_dtype) + "; both give the same count and type"});
        return;
      }
      const std::size_t bytes = work_.output_count * size_bytes(work_.output_dtype);
      const std::size_t piece = std::min(outbox_part_bytes, bytes - received_bytes_);
      kernels::copy_bytes(work_.output + received_bytes_, payload(work_.from, part), piece);
      part.owner.store(0);
      channel_.control().slot(work_.from).mail.ring();
      received_bytes_ += piece;
      unreceived_ = received_bytes_ < bytes;
    }

    static std::uint32_t mark(int rank) noexcept { return static_cast<std::uint32_t>(rank) + 1; }

    std::byte* payload(int rank, const OutboxPart& part) const noexcept {
      const OutboxPart* const first = channel_.control().slot(rank).outbox.data();
      return channel_.control().outbox(rank, static_cast<std::size_t>(&part - first));
    }

    const Transfer& work_;
    Channel& channel_;
    bool unsent_;
    bool unreceived_;
    const std::uint64_t sent_number_;
    const std::uint64_t received_number_;
    std::size_t sent_bytes_ = 0;
    std::size_t received_bytes_ = 0;
  };
};

}  // namespace DTRAIN_NAMESPACE::backend::shared_memory
