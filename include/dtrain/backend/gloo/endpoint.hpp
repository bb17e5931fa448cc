#pragma once
/// @file
/// gloo::Endpoint: a channel's point-to-point messages over Gloo's unbound buffers; waiting for a message blocks the
/// thread.

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "dtrain/backend/gloo/mesh.hpp"
#include "dtrain/backend/message_passing/endpoint.hpp"
#include "dtrain/core/config.hpp"
#include "dtrain/core/text/format_text.hpp"

#if DTRAIN_WITH_GLOO

namespace DTRAIN_NAMESPACE::backend::gloo {

using message_passing::FramePool;
using message_passing::TagClass;

/// A message_passing::Endpoint whose `done` blocks. Messages of a tag class are numbered in each direction between two
/// ranks; Gloo matches the ends by class and number. Gloo does not report a received message's length, and ends the
/// process if the message exceeds its memory. Hence:
/// - a message of up to 16 KiB travels in a frame with its length;
/// - a longer message also matches by its length, so its memory has exactly that length, and a message of another
///   length is not received.
/// Gloo allocates for each message; dtrain's own memory is reused.
///
/// Threads: one at a time; interrupt() from any. Lifetime: the mesh outlives it.
class Endpoint {
 public:
  struct MessageHandle {
    std::uint32_t index = 0;
  };

  explicit Endpoint(Mesh& mesh)
      : mesh_(mesh),
        rank_(mesh.gloo_context().rank),
        size_(mesh.gloo_context().size),
        numbers_(static_cast<std::size_t>(size_)) {}
  Endpoint(const Endpoint&) = delete;
  Endpoint& operator=(const Endpoint&) = delete;

  int rank() const noexcept { return rank_; }
  int size() const noexcept { return size_; }
  FramePool& frames() noexcept { return frames_; }

  /// @throws Error (closed) if the peer has closed its connection; (limit) from 2^40 bytes on
  MessageHandle send(std::span<const std::byte> input, int peer, TagClass tag_class) {
    PendingMessage& message = start(peer, false);
    const std::uint64_t slot = next_slot(numbers_[static_cast<std::size_t>(peer)].sent, tag_class, input.size());
    message.bytes = input.size();
    if (input.size() <= longest_framed) {
      const std::uint64_t length = input.size();
      std::memcpy(message.frame(), &length, sizeof length);
      if (!input.empty()) {
        std::memcpy(message.frame() + sizeof length, input.data(), input.size());
      }
      input = {message.frame(), sizeof length + input.size()};
    }
    const auto call = [&] { message.buffer->send(peer, slot, offset_of(input.data()), input.size()); };
    calling_gloo([&] { return doing(message); }, call);
    return {message.index};
  }

  /// As send.
  MessageHandle recv(std::span<std::byte> output, int peer, TagClass tag_class) {
    PendingMessage& message = start(peer, true);
    const std::uint64_t slot = next_slot(numbers_[static_cast<std::size_t>(peer)].received, tag_class, output.size());
    message.bytes = output.size();
    message.target = nullptr;
    if (output.size() <= longest_framed) {
      message.target = output.data();
      message.framed = true;
      output = {message.frame(), sizeof(std::uint64_t) + longest_framed};
    }
    const auto call = [&] { message.buffer->recv(peer, slot, offset_of(output.data()), output.size()); };
    calling_gloo([&] { return doing(message); }, call);
    return {message.index};
  }

  /// Blocking, until the message is complete or interrupt() ends the wait.
  /// @throws Error (closed) if the peer has closed its connection; (disagreement) if a message exceeds its memory
  message_passing::BlockingAwaiter<Endpoint> done(MessageHandle handle) noexcept { return {*this, handle}; }

  /// Ends the current wait; later waits do not begin. Threads: any.
  void interrupt() noexcept {
    const std::lock_guard lock(mutex_);
    interrupted_ = true;
    if (awaited_ != nullptr) {
      awaited_->receives ? awaited_->buffer->abortWaitRecv() : awaited_->buffer->abortWaitSend();
    }
  }

  /// Drops all messages: on return, no thread reads or writes their memory. Afterwards only destruction is allowed.
  void abandon() noexcept {
    {
      const std::lock_guard lock(mutex_);
      interrupted_ = true;
      awaited_ = nullptr;
    }
    messages_.clear();
    free_.clear();
  }

  /// Whether every message that was started is complete.
  bool is_idle() const noexcept { return free_.size() == messages_.size(); }

  /// After an interrupted wait: the peer, and whether that peer had to send (true) or receive.
  std::pair<int, bool> waits_for() const noexcept { return awaited_end_; }

 private:
  friend struct message_passing::BlockingAwaiter<Endpoint>;

  static constexpr std::size_t longest_framed = 16 * 1024;
  static constexpr unsigned length_bits = 40;
  static constexpr unsigned number_bits = 23;

  /// A message in flight, or a free entry for one. Has a stable address.
  struct PendingMessage {
    std::uint32_t index = 0;
    int peer = -1;
    bool receives = false;
    bool framed = false;
    std::size_t bytes = 0;
    std::byte* target = nullptr;
    std::unique_ptr<std::byte[]> memory;
    std::unique_ptr<::gloo::transport::UnboundBuffer> buffer;  ///< destroyed first: then Gloo no longer uses the memory

    std::byte* frame() {
      if (!memory) {
        memory.reset(new std::byte[sizeof(std::uint64_t) + longest_framed]);
      }
      return memory.get();
    }
  };

  struct SequenceNumbers {
    std::array<std::uint32_t, message_passing::tag_class_count> sent{};
    std::array<std::uint32_t, message_passing::tag_class_count> received{};
  };

  /// A buffer that spans all of memory serves messages at any address: an offset in it is an address.
  std::unique_ptr<::gloo::transport::UnboundBuffer> all_of_memory() const {
    return mesh_.gloo_context().createUnboundBuffer(nullptr, std::numeric_limits<std::size_t>::max());
  }
  static std::size_t offset_of(const std::byte* address) noexcept { return reinterpret_cast<std::uintptr_t>(address); }

  PendingMessage& start(int peer, bool receives) {
    if (free_.empty()) {
      free_.reserve(messages_.size() + 1);  // so that take() does not allocate
      auto made = std::make_unique<PendingMessage>();
      made->index = static_cast<std::uint32_t>(messages_.size());
      made->buffer = all_of_memory();
      messages_.push_back(std::move(made));
      free_.push_back(messages_.back()->index);
    }
    PendingMessage& message = *messages_[free_.back()];
    free_.pop_back();
    message.peer = peer;
    message.receives = receives;
    message.framed = false;
    return message;
  }

  std::string doing(const PendingMessage& message) const {
    return format_text(
        "{} {}, which has ended or left the channel (does every rank take as many steps and call the same "
        "collectives?)",
        {message.receives ? "receiving from" : "sending to", mesh_.to_string(message.peer)});
  }

  /// Gloo's match key: tag class, number and, for a long message, its length.
  static std::uint64_t next_slot(std::array<std::uint32_t, message_passing::tag_class_count>& numbers,
                                 TagClass tag_class, std::size_t bytes) {
    if (bytes >> length_bits != 0) {
      throw_error(Errc::limit, "a message of {} bytes is longer than a channel of Gloo takes", {bytes});
    }
    const std::uint64_t number = numbers[static_cast<std::size_t>(tag_class)]++ % (1U << number_bits);
    const std::uint64_t length = bytes <= longest_framed ? 0 : bytes;
    return static_cast<std::uint64_t>(tag_class) << (length_bits + number_bits) | number << length_bits | length;
  }

  /// @returns false if interrupted
  bool block_until_done(MessageHandle handle) {
    PendingMessage& message = *messages_[handle.index];
    awaited_end_ = {message.peer, message.receives};
    if (!announce(&message)) {
      return false;
    }
    struct AnnouncementGuard {
      Endpoint& endpoint;
      ~AnnouncementGuard() { endpoint.announce(nullptr); }
    };
    const auto wait = [&] {
      const AnnouncementGuard guard{*this};
      return message.receives ? message.buffer->waitRecv(nullptr, longest_wait)
                              : message.buffer->waitSend(nullptr, longest_wait);
    };
    return calling_gloo([&] { return doing(message); }, wait);
  }

  /// Publishes the message whose wait interrupt() ends. @returns false if interrupt() was called before
  bool announce(PendingMessage* message) noexcept {
    const std::lock_guard lock(mutex_);
    if (interrupted_ && message != nullptr) {
      return false;
    }
    awaited_ = message;
    return true;
  }

  std::size_t take(MessageHandle handle) {
    PendingMessage& message = *messages_[handle.index];
    const std::size_t bytes = message.framed ? unpack(message) : message.bytes;
    free_.push_back(message.index);
    return bytes;
  }

  std::size_t unpack(PendingMessage& message) const {
    std::uint64_t length = 0;
    std::memcpy(&length, message.frame(), sizeof length);
    if (length > message.bytes) {
      throw_error(Errc::disagreement, "{} sends {} bytes where {} are received",
                  {mesh_.to_string(message.peer), length, message.bytes});
    }
    if (length > 0) {
      std::memcpy(message.target, message.frame() + sizeof length, static_cast<std::size_t>(length));
    }
    return static_cast<std::size_t>(length);
  }

  /// The caller interrupts at its own deadline, because Gloo closes all connections when its timeout passes.
  static constexpr std::chrono::milliseconds longest_wait = std::chrono::hours(24 * 365);

  Mesh& mesh_;
  const int rank_;
  const int size_;
  FramePool frames_;
  std::vector<SequenceNumbers> numbers_;  ///< one entry for each peer
  std::vector<std::unique_ptr<PendingMessage>> messages_;
  std::vector<std::uint32_t> free_;
  std::pair<int, bool> awaited_end_{-1, true};
  std::mutex mutex_;
  bool interrupted_ = false;
  PendingMessage* awaited_ = nullptr;
};

static_assert(message_passing::Endpoint<Endpoint>);

}  // namespace DTRAIN_NAMESPACE::backend::gloo

#endif  // DTRAIN_WITH_GLOO
