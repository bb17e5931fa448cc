#pragma once
/// @file
/// MailboxEndpoint: point-to-point messages in shared memory, in chunks through the sender's mailbox.

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "dtrain/backend/message_passing/endpoint.hpp"
#include "dtrain/backend/shared_memory/channel.hpp"
#include "dtrain/backend/shared_memory/control_block.hpp"
#include "dtrain/core/config.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/core/types/buffer_view.hpp"
#include "dtrain/kernels/copy.hpp"
#include "dtrain/rendezvous/membership/rank_set.hpp"

namespace DTRAIN_NAMESPACE::backend::shared_memory {

/// A message_passing::Endpoint whose `done` blocks. A rank's messages to all ranks leave in the order of their sends;
/// its receives are independent of its sends. A send is done when its last chunk is in the mailbox: a message of up to
/// mailbox_slots chunks does not wait for its receiver, if the mailbox is empty. Threads: the one that runs the
/// channel's work. Lifetime: the channel outlives the work.
class MailboxEndpoint {
 public:
  struct MessageHandle {
    std::uint32_t index = 0;
  };

  explicit MailboxEndpoint(Channel& channel);
  MailboxEndpoint(const MailboxEndpoint&) = delete;
  MailboxEndpoint& operator=(const MailboxEndpoint&) = delete;

  int rank() const noexcept { return rank_; }
  int size() const noexcept { return static_cast<int>(numbers_.size()); }
  message_passing::FramePool& frames() noexcept { return frames_; }

  MessageHandle send(std::span<const std::byte> input, int peer, message_passing::TagClass tag_class) {
    return start_send({input.data(), input.size(), DType::u8}, peer, tag_class);
  }
  MessageHandle recv(std::span<std::byte> output, int peer, message_passing::TagClass tag_class) {
    return start_recv({output.data(), output.size(), DType::u8, {}}, peer, tag_class);
  }

  /// As send and recv; the two ends of a user's message (TagClass::direct) give the same count and type.
  MessageHandle start_send(const ConstBufferView& input, int peer, message_passing::TagClass tag_class);
  MessageHandle start_recv(const BufferView& output, int peer, message_passing::TagClass tag_class);

  /// Blocking, until the message is complete or the channel has failed.
  message_passing::BlockingAwaiter<MailboxEndpoint> done(MessageHandle handle) noexcept { return {*this, handle}; }

  /// Blocking: moves chunks of every message. @returns false if the channel has failed
  bool block_until_done(MessageHandle handle) noexcept;

  /// Frees the handle of a message that is done. @returns the message's bytes
  std::size_t take(MessageHandle handle) noexcept;

 private:
  /// A message in flight, or a free entry for one.
  struct PendingMessage {
    ConstBufferView view;
    std::byte* output = nullptr;  ///< the view's memory; null: a send
    int peer = -1;
    message_passing::TagClass tag_class{};
    bool done = false;
    std::uint64_t number = 0;  ///< 1, 2, ... from one rank to another, in each tag class
    std::size_t moved = 0;     ///< bytes

    std::uint64_t key() const noexcept {
      return number * message_passing::tag_class_count + static_cast<std::uint64_t>(tag_class);
    }
  };

  struct MailboxNumbers {
    std::array<std::uint64_t, message_passing::tag_class_count> sent{};
    std::array<std::uint64_t, message_passing::tag_class_count> posted{};    ///< recvs
    std::array<std::uint64_t, message_passing::tag_class_count> received{};  ///< recvs that are done
  };

  /// The wait for a chunk that can be moved; see Channel::wait.
  class ChunkWait;

  std::uint32_t free_entry();
  bool move_chunks() noexcept;
  bool send_chunk() noexcept;
  void receive_chunk(PendingMessage& message, MailboxSlot& slot) noexcept;
  MailboxSlot* free_slot() const noexcept;
  MailboxSlot* filled_slot(const PendingMessage& message) const noexcept;
  std::byte* memory_of(int rank, const MailboxSlot& slot) const noexcept;

  Channel& channel_;
  const int rank_;
  message_passing::FramePool frames_;
  std::vector<MailboxNumbers> numbers_;  ///< one entry for each peer
  std::vector<PendingMessage> messages_;
  std::vector<std::uint32_t> free_;
  std::vector<std::uint32_t> sends_;  ///< not done, in the order of their start
  std::vector<std::uint32_t> recvs_;  ///< recvs, as sends_
};

static_assert(message_passing::Endpoint<MailboxEndpoint>);

/// A send, a recv, or both at once, which do not wait for each other.
struct MailboxTransfer {
  const std::byte* input;
  std::byte* output;
  std::uint64_t input_count;
  std::uint64_t output_count;
  MailboxEndpoint* endpoint;
  std::int32_t to;    ///< -1: no send
  std::int32_t from;  ///< -1: no recv
  DType input_dtype;
  DType output_dtype;

  void operator()(Channel& /*channel*/, const Operation& /*operation*/) const noexcept {
    MailboxEndpoint::MessageHandle sent;
    if (to >= 0) {
      sent = endpoint->start_send({input, input_count, input_dtype, {}}, to, message_passing::TagClass::direct);
    }
    if (from >= 0) {
      const auto received =
          endpoint->start_recv({output, output_count, output_dtype, {}}, from, message_passing::TagClass::direct);
      if (!endpoint->block_until_done(received)) {
        return;
      }
      endpoint->take(received);
    }
    if (to >= 0 && endpoint->block_until_done(sent)) {
      endpoint->take(sent);
    }
  }
};

#if DTRAIN_DEFINITIONS

using message_passing::TagClass;

namespace detail {

inline std::uint32_t mailbox_owner(int rank) noexcept {
  return static_cast<std::uint32_t>(rank) + 1;
}

}  // namespace detail

class MailboxEndpoint::ChunkWait {
 public:
  ChunkWait(const MailboxEndpoint& endpoint, const PendingMessage& awaited) noexcept
      : endpoint_(endpoint), channel_(endpoint.channel_), awaited_(awaited) {}

  bool done() const noexcept {
    return endpoint_.free_slot() != nullptr ||
           std::any_of(endpoint_.recvs_.begin(), endpoint_.recvs_.end(), [&](std::uint32_t index) {
             return endpoint_.filled_slot(endpoint_.messages_[index]) != nullptr;
           });
  }
  int peer() const noexcept { return awaited_.peer; }
  bool may_sleep() const noexcept { return !done() && gone() < 0 && departed_holder() < 0; }
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
    const int holder = departed_holder();
    if ((peer >= 0 || holder >= 0) && !done()) {
      return Cause{CauseKind::disagreement, -1, "",
                   format_text("{} cannot be finished: rank {} has left the channel without {}",
                               {present(), job_rank(peer >= 0 ? peer : holder),
                                peer >= 0 ? "completing it" : "receiving what this rank had sent to it before"})};
    }
    return std::nullopt;
  }

  std::string missing(std::chrono::milliseconds waited) const {
    const bool receives = awaited_.output != nullptr;
    const std::string what = format_text("{} had not {} after {} ms",
                                         {receives ? rendezvous::rank_list({job_rank(awaited_.peer)}) : holders(),
                                          receives ? "sent all of it" : "taken what was sent before", waited.count()});
    if (awaited_.tag_class == TagClass::direct) {
      return receives ? what : what + "; where ranks send to each other before they receive, use send_recv";
    }
    return what + "; does every rank call it? DTRAIN_TIMEOUT_SECONDS is how long it may take";
  }

 private:
  bool left(int peer) const noexcept { return channel_.control().slot(peer).state.load() != SlotState::serving; }

  /// A peer that a message still needs but that has left; -1 if there is none.
  int gone() const noexcept {
    for (const std::vector<std::uint32_t>* list : {&endpoint_.sends_, &endpoint_.recvs_}) {
      const auto found = std::find_if(list->begin(), list->end(),
                                      [&](std::uint32_t index) { return left(endpoint_.messages_[index].peer); });
      if (found != list->end()) {
        return endpoint_.messages_[*found].peer;
      }
    }
    return -1;
  }

  /// The rank that a slot of this rank's mailbox is filled for; -1: the slot is free.
  static int holder_of(const MailboxSlot& slot) noexcept { return static_cast<int>(slot.owner.load()) - 1; }
  const auto& mailbox() const noexcept { return channel_.control().slot(channel_.rank()).mailbox; }

  /// A rank that has left with unreceived chunks in this rank's mailbox, if a send waits and such chunks fill the whole
  /// mailbox: nobody will free a slot. -1 otherwise.
  int departed_holder() const noexcept {
    const bool is_stuck =
        !endpoint_.sends_.empty() && std::all_of(mailbox().begin(), mailbox().end(), [&](const MailboxSlot& slot) {
          const int holder = holder_of(slot);
          return holder >= 0 && left(holder);
        });
    return is_stuck ? holder_of(mailbox().front()) : -1;
  }

  /// The ranks that have not received what fills this rank's mailbox.
  std::string holders() const {
    std::vector<int> ranks;
    for (const MailboxSlot& slot : mailbox()) {
      const int holder = holder_of(slot);
      ranks.push_back(job_rank(holder >= 0 ? holder : awaited_.peer));
    }
    std::sort(ranks.begin(), ranks.end());
    ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
    return rendezvous::rank_list(ranks);
  }

  int job_rank(int peer) const noexcept { return channel_.control().job_rank(peer); }

  const MailboxEndpoint& endpoint_;
  const Channel& channel_;
  const PendingMessage& awaited_;
};

DTRAIN_DEFINED MailboxEndpoint::MailboxEndpoint(Channel& channel)
    : channel_(channel), rank_(channel.rank()), numbers_(static_cast<std::size_t>(channel.size())) {}

DTRAIN_DEFINED std::uint32_t MailboxEndpoint::free_entry() {
  if (free_.empty()) {
    const std::size_t entries = messages_.size() + 1;
    free_.reserve(entries);  // so that take() and the moves of chunks do not allocate
    sends_.reserve(entries);
    recvs_.reserve(entries);
    messages_.emplace_back();
    return static_cast<std::uint32_t>(entries - 1);
  }
  const std::uint32_t index = free_.back();
  free_.pop_back();
  return index;
}

DTRAIN_DEFINED MailboxEndpoint::MessageHandle MailboxEndpoint::start_send(const ConstBufferView& input, int peer,
                                                                          TagClass tag_class) {
  const std::uint32_t index = free_entry();
  const std::size_t list = static_cast<std::size_t>(tag_class);
  messages_[index] = {input, nullptr, peer, tag_class, false, ++numbers_[static_cast<std::size_t>(peer)].sent[list], 0};
  sends_.push_back(index);
  while (send_chunk()) {
  }
  return {index};
}

DTRAIN_DEFINED MailboxEndpoint::MessageHandle MailboxEndpoint::start_recv(const BufferView& output, int peer,
                                                                          TagClass tag_class) {
  const std::uint32_t index = free_entry();
  const std::size_t list = static_cast<std::size_t>(tag_class);
  messages_[index] = {
      output, output.data, peer, tag_class, false, ++numbers_[static_cast<std::size_t>(peer)].posted[list], 0};
  recvs_.push_back(index);
  return {index};
}

DTRAIN_DEFINED bool MailboxEndpoint::block_until_done(MessageHandle handle) noexcept {
  while (!messages_[handle.index].done) {
    if (channel_.aborted() || (!move_chunks() && !channel_.wait(ChunkWait(*this, messages_[handle.index])))) {
      return false;
    }
  }
  return true;
}

DTRAIN_DEFINED std::size_t MailboxEndpoint::take(MessageHandle handle) noexcept {
  free_.push_back(handle.index);
  return messages_[handle.index].moved;
}

/// Sends one chunk and receives one, if they can be moved now. @returns whether it moved any
DTRAIN_DEFINED bool MailboxEndpoint::move_chunks() noexcept {
  const bool sent = send_chunk();
  for (std::size_t place = 0; place < recvs_.size(); ++place) {
    const std::uint32_t index = recvs_[place];
    if (MailboxSlot* const slot = filled_slot(messages_[index])) {
      receive_chunk(messages_[index], *slot);
      if (messages_[index].done) {
        recvs_.erase(recvs_.begin() + static_cast<std::ptrdiff_t>(place));
      }
      return true;
    }
  }
  return sent;
}

DTRAIN_DEFINED bool MailboxEndpoint::send_chunk() noexcept {
  MailboxSlot* const slot = free_slot();
  if (slot == nullptr) {
    return false;
  }
  PendingMessage& message = messages_[sends_.front()];
  const std::size_t bytes = message.view.bytes();
  const std::size_t chunk = std::min(mailbox_slot_bytes, bytes - message.moved);
  const auto copy = chunk <= mailbox_cached_bytes ? &kernels::copy_bytes : &kernels::stream_bytes;
  copy(memory_of(rank_, *slot), message.view.data + message.moved, chunk);
  slot->message = message.key();
  slot->offset = message.moved;
  slot->count = message.view.count;
  slot->dtype = message.view.dtype;
  slot->owner.store(detail::mailbox_owner(message.peer));
  channel_.control().slot(message.peer).mailbox_events.increment();
  message.moved += chunk;
  message.done = message.moved == bytes;
  if (message.done) {
    sends_.erase(sends_.begin());
  }
  return true;
}

DTRAIN_DEFINED void MailboxEndpoint::receive_chunk(PendingMessage& message, MailboxSlot& slot) noexcept {
  const bool is_direct = message.tag_class == TagClass::direct;
  const bool fits = is_direct ? slot.count == message.view.count && slot.dtype == message.view.dtype
                              : slot.count <= message.view.count;
  if (!fits) {
    const MessageEnd sent{channel_.control().job_rank(message.peer), slot.count, slot.dtype};
    const MessageEnd received{channel_.job_rank(), message.view.count, message.view.dtype};
    const std::string place = is_direct ? position_of({}, channel_.name()) : "in " + channel_.present();
    channel_.fail({CauseKind::disagreement, -1, "", unequal_message(place, sent, received)});
    return;
  }
  const std::size_t bytes = slot.count * size_bytes(slot.dtype);
  const std::size_t chunk = std::min(mailbox_slot_bytes, bytes - message.moved);
  kernels::copy_bytes(message.output + message.moved, memory_of(message.peer, slot), chunk);
  slot.owner.store(0);
  channel_.control().slot(message.peer).mailbox_events.increment();
  message.moved += chunk;
  message.done = message.moved == bytes;
  if (message.done) {
    ++numbers_[static_cast<std::size_t>(message.peer)].received[static_cast<std::size_t>(message.tag_class)];
  }
}

/// A slot for the next chunk; null if nothing remains to be sent or no slot is free.
DTRAIN_DEFINED MailboxSlot* MailboxEndpoint::free_slot() const noexcept {
  if (!sends_.empty()) {
    for (MailboxSlot& slot : channel_.control().slot(rank_).mailbox) {
      if (slot.owner.load() == 0) {
        return &slot;
      }
    }
  }
  return nullptr;
}

/// The next chunk of a message to this rank; null if it has not arrived, or an earlier message has not.
DTRAIN_DEFINED MailboxSlot* MailboxEndpoint::filled_slot(const PendingMessage& message) const noexcept {
  const MailboxNumbers& numbers = numbers_[static_cast<std::size_t>(message.peer)];
  if (message.number == numbers.received[static_cast<std::size_t>(message.tag_class)] + 1) {
    for (MailboxSlot& slot : channel_.control().slot(message.peer).mailbox) {
      if (slot.owner.load() == detail::mailbox_owner(rank_) && slot.message == message.key() &&
          slot.offset == message.moved) {
        return &slot;
      }
    }
  }
  return nullptr;
}

DTRAIN_DEFINED std::byte* MailboxEndpoint::memory_of(int rank, const MailboxSlot& slot) const noexcept {
  const MailboxSlot* const first = channel_.control().slot(rank).mailbox.data();
  return channel_.control().mailbox(rank, static_cast<std::size_t>(&slot - first));
}

#endif  // DTRAIN_DEFINITIONS

}  // namespace DTRAIN_NAMESPACE::backend::shared_memory
