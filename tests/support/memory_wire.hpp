#pragma once
/// @file
/// A wire between ranks that are threads of the test: messages are copied from the sender's memory to the receiver's.

#include <chrono>
#include <condition_variable>
#include <coroutine>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <tuple>
#include <vector>

#include "dtrain/backend/message_passing/wire.hpp"
#include "dtrain/core/error.hpp"

namespace support {

/// What the ranks share. A message completes when both ends have started it: nothing is buffered, so that an algorithm
/// that counts on buffering hangs here, and its deadline says so.
class MemoryWires {
 public:
  struct Message {
    const std::byte* input = nullptr;
    std::byte* output = nullptr;
    std::size_t sent = 0;
    std::size_t room = 0;
    bool has_sender = false;
    bool has_receiver = false;
  };

 private:
  friend class MemoryWire;
  using Key = std::tuple<int, int, int, std::size_t>;  // from, to, lane, number

  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<Key, Message> messages_;
  std::map<std::tuple<int, int, int, bool>, std::size_t> counts_;
};

/// Blocks in done(), as a wire over blocking calls does.
class MemoryWire {
 public:
  struct Ticket {
    MemoryWires::Message* message = nullptr;
    bool receives = false;
  };

  MemoryWire(std::shared_ptr<MemoryWires> wires, int rank, int size)
      : wires_(std::move(wires)), rank_(rank), size_(size) {}

  MemoryWire(const MemoryWire&) = delete;
  MemoryWire& operator=(const MemoryWire&) = delete;
  /// Messages that are under way lose this end's memory.
  ~MemoryWire() {
    const std::lock_guard lock(wires_->mutex_);
    for (auto& [key, message] : wires_->messages_) {
      message.input = std::get<0>(key) == rank_ ? nullptr : message.input;
      message.output = std::get<1>(key) == rank_ ? nullptr : message.output;
    }
  }

  int rank() const noexcept { return rank_; }
  int size() const noexcept { return size_; }
  dtrain::backend::message_passing::FramePool& frames() noexcept { return frames_; }

  Ticket send(std::span<const std::byte> input, int peer, dtrain::backend::message_passing::Lane lane) {
    const std::lock_guard lock(wires_->mutex_);
    MemoryWires::Message& message = next(rank_, peer, lane, false);
    message.input = input.data();
    message.sent = input.size();
    message.has_sender = true;
    deliver(message);
    return {&message, false};
  }

  Ticket recv(std::span<std::byte> output, int peer, dtrain::backend::message_passing::Lane lane) {
    const std::lock_guard lock(wires_->mutex_);
    MemoryWires::Message& message = next(peer, rank_, lane, true);
    message.output = output.data();
    message.room = output.size();
    message.has_receiver = true;
    deliver(message);
    return {&message, true};
  }

  struct Awaiter {
    MemoryWire& wire;
    Ticket ticket;
    bool await_ready() const { return true; }
    void await_suspend(std::coroutine_handle<>) const {}
    std::size_t await_resume() const { return wire.block_until_done(ticket); }
  };
  Awaiter done(Ticket ticket) { return {*this, ticket}; }

 private:
  MemoryWires::Message& next(int from, int to, dtrain::backend::message_passing::Lane lane, bool receives) {
    const int number = static_cast<int>(lane);
    return wires_->messages_[{from, to, number, wires_->counts_[{from, to, number, receives}]++}];
  }

  void deliver(MemoryWires::Message& message) {
    if (message.has_sender && message.has_receiver) {
      const bool both = message.input != nullptr && message.output != nullptr;
      if (both && message.sent > 0 && message.sent <= message.room) {
        std::memcpy(message.output, message.input, message.sent);
      }
      wires_->changed_.notify_all();
    }
  }

  std::size_t block_until_done(Ticket ticket) {
    if (ticket.message == nullptr) {
      throw std::logic_error("a ticket that stands for no message was awaited");
    }
    std::unique_lock lock(wires_->mutex_);
    const bool came = wires_->changed_.wait_for(
        lock, std::chrono::seconds(10), [&] { return ticket.message->has_sender && ticket.message->has_receiver; });
    if (!came) {
      throw dtrain::Error(dtrain::Errc::timeout, "a message of the memory wire had no other end");
    }
    if (ticket.receives && ticket.message->sent > ticket.message->room) {
      throw dtrain::Error(dtrain::Errc::disagreement, "a message is longer than the memory for it");
    }
    return ticket.message->sent;
  }

  std::shared_ptr<MemoryWires> wires_;
  int rank_;
  int size_;
  dtrain::backend::message_passing::FramePool frames_;
};

}  // namespace support
