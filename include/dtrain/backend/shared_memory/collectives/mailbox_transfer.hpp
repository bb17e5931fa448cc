#pragma once
/// @file
/// Point-to-point transfer in shared memory: messages pass through the sender's mailbox in chunks.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "dtrain/backend/shared_memory/channel.hpp"
#include "dtrain/backend/shared_memory/mailbox_slot.hpp"
#include "dtrain/core/cause.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/kernels/copy.hpp"
#include "dtrain/kernels/non_temporal_copy.hpp"

namespace DTRAIN_NAMESPACE::backend::shared_memory {

/// A send, a recv, or both at once, which do not wait for each other. A send completes when its last chunk is in the
/// mailbox: a message of up to mailbox_slots chunks does not wait for its receiver, if the mailbox is empty.
struct MailboxTransfer {
  const std::byte* input;
  std::byte* output;
  std::uint64_t input_count;
  std::uint64_t output_count;
  DType input_dtype;
  DType output_dtype;
  std::int32_t to;    ///< -1: no send
  std::int32_t from;  ///< -1: no recv

  void operator()(Channel& channel, const Operation& /*operation*/) const noexcept {
    TransferExecution execution(*this, channel);
    while (execution.advance()) {
      if (!channel.wait(execution)) {
        return;
      }
    }
  }

 private:
  /// One execution on one rank; Channel::wait waits for it while it cannot advance.
  class TransferExecution {
   public:
    TransferExecution(const MailboxTransfer& work, Channel& channel) noexcept
        : work_(work),
          channel_(channel),
          unsent_(work.to >= 0),
          unreceived_(work.from >= 0),
          sent_number_(unsent_ ? ++channel.sent_to(work.to) : 0),
          received_number_(unreceived_ ? ++channel.received_from(work.from) : 0) {}

    /// Moves all chunks that can be moved now. @returns true if chunks remain and the channel has not failed
    bool advance() noexcept {
      while (!channel_.aborted()) {
        MailboxSlot* const free = free_slot();
        MailboxSlot* const filled = filled_slot();
        if (free != nullptr) {
          send_chunk(*free);
        }
        if (filled != nullptr) {
          receive_chunk(*filled);
        }
        if (free == nullptr && filled == nullptr) {
          return unsent_ || unreceived_;
        }
      }
      return false;
    }

    bool done() const noexcept { return free_slot() != nullptr || filled_slot() != nullptr; }
    int peer() const noexcept { return unreceived_ ? work_.from : work_.to; }
    bool may_sleep() const noexcept { return !done() && gone() < 0; }
    FutexCounter& counter() const noexcept { return channel_.control().slot(channel_.rank()).mailbox_events; }

    template <class Present>
    std::optional<Cause> failure(const Present& present) const {
      for (int rank = 0; rank < channel_.size(); ++rank) {
        const RankSlot& slot = channel_.control().slot(rank);
        if (slot.state.load() == SlotState::failed) {
          return slot.cause.load();
        }
      }
      const int peer = gone();
      if (peer >= 0 && !done()) {
        return Cause{CauseKind::disagreement, -1, "",
                     format_text("{} cannot be finished: rank {} has left the channel without completing it",
                                 {present(), job_rank(peer)})};
      }
      return std::nullopt;
    }

    std::string missing(std::chrono::milliseconds waited) const {
      if (unreceived_) {
        return format_text("rank {} had not sent all of it after {} ms", {job_rank(work_.from), waited.count()});
      }
      return format_text(
          "rank {} had not taken what was sent before after {} ms; where ranks send to each other before they receive, "
          "use send_recv",
          {job_rank(work_.to), waited.count()});
    }

   private:
    bool left(int peer) const noexcept { return channel_.control().slot(peer).state.load() != SlotState::serving; }

    /// A peer that is still needed but has left; -1 if there is none.
    int gone() const noexcept {
      return unsent_ && left(work_.to) ? work_.to : unreceived_ && left(work_.from) ? work_.from : -1;
    }

    int job_rank(int peer) const noexcept { return channel_.control().job_rank(peer); }

    /// A slot for the next chunk; null if nothing remains to be sent or no slot is free.
    MailboxSlot* free_slot() const noexcept {
      if (unsent_) {
        for (MailboxSlot& slot : channel_.control().slot(channel_.rank()).mailbox) {
          if (slot.owner.load() == 0) {
            return &slot;
          }
        }
      }
      return nullptr;
    }

    /// The next chunk for this rank; null if none is expected or it has not arrived.
    MailboxSlot* filled_slot() const noexcept {
      if (unreceived_) {
        for (MailboxSlot& slot : channel_.control().slot(work_.from).mailbox) {
          if (slot.owner.load() == mark(channel_.rank()) && slot.message == received_number_ &&
              slot.offset == received_bytes_) {
            return &slot;
          }
        }
      }
      return nullptr;
    }

    void send_chunk(MailboxSlot& slot) noexcept {
      const std::size_t bytes = work_.input_count * size_bytes(work_.input_dtype);
      const std::size_t chunk = std::min(mailbox_slot_bytes, bytes - sent_bytes_);
      const auto copy = chunk <= slot_bytes ? &kernels::copy_bytes : &kernels::stream_bytes;
      copy(payload(channel_.rank(), slot), work_.input + sent_bytes_, chunk);
      slot.message = sent_number_;
      slot.offset = sent_bytes_;
      slot.count = work_.input_count;
      slot.dtype = work_.input_dtype;
      slot.owner.store(mark(work_.to));
      channel_.control().slot(work_.to).mailbox_events.increment();
      sent_bytes_ += chunk;
      unsent_ = sent_bytes_ < bytes;
    }

    void receive_chunk(MailboxSlot& slot) noexcept {
      if (slot.count != work_.output_count || slot.dtype != work_.output_dtype) {
        channel_.fail({CauseKind::disagreement, -1, "",
                       unequal_message(position_of({}, channel_.name()), {job_rank(work_.from), slot.count, slot.dtype},
                                       {channel_.job_rank(), work_.output_count, work_.output_dtype})});
        return;
      }
      const std::size_t bytes = work_.output_count * size_bytes(work_.output_dtype);
      const std::size_t chunk = std::min(mailbox_slot_bytes, bytes - received_bytes_);
      kernels::copy_bytes(work_.output + received_bytes_, payload(work_.from, slot), chunk);
      slot.owner.store(0);
      channel_.control().slot(work_.from).mailbox_events.increment();
      received_bytes_ += chunk;
      unreceived_ = received_bytes_ < bytes;
    }

    static std::uint32_t mark(int rank) noexcept { return static_cast<std::uint32_t>(rank) + 1; }

    std::byte* payload(int rank, const MailboxSlot& slot) const noexcept {
      const MailboxSlot* const first = channel_.control().slot(rank).mailbox.data();
      return channel_.control().mailbox(rank, static_cast<std::size_t>(&slot - first));
    }

    const MailboxTransfer& work_;
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
