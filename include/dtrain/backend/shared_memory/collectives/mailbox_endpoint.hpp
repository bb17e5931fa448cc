#pragma once
/// @file
/// MailboxEndpoint: messages in shared memory, which pass through the sender's mailbox in chunks.

#include <array>
#include <coroutine>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "dtrain/backend/message_passing/coroutine_frame_pool.hpp"
#include "dtrain/backend/message_passing/endpoint.hpp"
#include "dtrain/core/config.hpp"
#include "dtrain/core/types/buffer_view.hpp"

namespace DTRAIN_NAMESPACE::backend::shared_memory {

class Channel;
struct MailboxSlot;

/// A message_passing::Endpoint whose `done` blocks. A rank's messages to all ranks leave in the order of their sends;
/// those that it receives are independent of them. A send is done when its last chunk is in the mailbox: a message of
/// up to mailbox_slots chunks does not wait for its receiver, if the mailbox is empty. Threads: the one that runs the
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

  /// The user's messages, whose two ends give the same count and type.
  MessageHandle send(const ConstBufferView& input, int peer) {
    return start_send(input, peer, message_passing::TagClass::direct);
  }
  MessageHandle recv(const BufferView& output, int peer) {
    return start_recv(output, peer, message_passing::TagClass::direct);
  }

  struct Awaiter {
    MailboxEndpoint& endpoint;
    MessageHandle handle;

    bool await_ready() const { return endpoint.block_until_done(handle); }
    void await_suspend(std::coroutine_handle<>) const noexcept {}
    std::size_t await_resume() const { return endpoint.take(handle); }
  };

  /// Blocking, in await_ready. The routine is suspended only if the channel has failed, and then never resumed.
  Awaiter done(MessageHandle handle) noexcept { return {*this, handle}; }

  /// Blocking: moves chunks of every message. @returns false if the channel has failed
  bool block_until_done(MessageHandle handle) noexcept;

  /// Frees the handle of a message that is done. @returns the message's bytes
  std::size_t take(MessageHandle handle) noexcept;

 private:
  /// A message in flight, or a free entry for one.
  struct PendingMessage {
    ConstBufferView view;
    std::byte* output = nullptr;  ///< of the view; null: a send
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

  MessageHandle start_send(const ConstBufferView& input, int peer, message_passing::TagClass tag_class);
  MessageHandle start_recv(const BufferView& output, int peer, message_passing::TagClass tag_class);
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
  std::vector<MailboxNumbers> numbers_;  ///< by peer
  std::vector<PendingMessage> messages_;
  std::vector<std::uint32_t> free_;
  std::vector<std::uint32_t> sends_;  ///< not done, in the order of their start
  std::vector<std::uint32_t> recvs_;  ///< as sends_
};

static_assert(message_passing::Endpoint<MailboxEndpoint>);

}  // namespace DTRAIN_NAMESPACE::backend::shared_memory

#if DTRAIN_DEFINITIONS
#include "dtrain/backend/shared_memory/collectives/mailbox_endpoint_definitions.hpp"
#endif
