#pragma once
/// @file
/// An endpoint between ranks that are threads of the test: messages are copied from the sender's memory to the
/// receiver's.

#include <chrono>
#include <condition_variable>
#include <coroutine>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <tuple>
#include <vector>

#include "dtrain/backend/message_passing/endpoint.hpp"
#include "dtrain/core/error.hpp"

namespace support {

/// What the ranks share. A message completes when both ends have started it: nothing is buffered, so that an algorithm
/// that counts on buffering hangs here, and its deadline says so.
class MemoryNetwork {
 public:
  struct Message {
    const std::byte* input = nullptr;
    std::byte* output = nullptr;
    std::size_t sent = 0;
    std::size_t room = 0;
    bool has_sender = false;
    bool has_receiver = false;
    bool lost_an_end = false;
  };

 private:
  friend class MemoryEndpoint;
  using Key = std::tuple<int, int, int, std::size_t>;  // from, to, tag class, number

  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<Key, Message> messages_;
  std::map<std::tuple<int, int, int, bool>, std::size_t> counts_;
  std::set<int> ranks_that_left_;
};

/// Blocks in done(), as an endpoint over blocking calls does.
class MemoryEndpoint {
 public:
  struct MessageHandle {
    MemoryNetwork::Message* message = nullptr;
    bool receives = false;
  };

  MemoryEndpoint(std::shared_ptr<MemoryNetwork> network, int rank, int size)
      : network_(std::move(network)), rank_(rank), size_(size) {}

  MemoryEndpoint(const MemoryEndpoint&) = delete;
  MemoryEndpoint& operator=(const MemoryEndpoint&) = delete;
  /// Messages of this end that have not completed fail at the other end. The memory they name must live until here.
  ~MemoryEndpoint() {
    const std::lock_guard lock(network_->mutex_);
    network_->ranks_that_left_.insert(rank_);
    for (auto& [key, message] : network_->messages_) {
      const bool is_ours = std::get<0>(key) == rank_ || std::get<1>(key) == rank_;
      message.lost_an_end = message.lost_an_end || (is_ours && !(message.has_sender && message.has_receiver));
    }
    network_->changed_.notify_all();
  }

  int rank() const noexcept { return rank_; }
  int size() const noexcept { return size_; }
  dtrain::backend::message_passing::FramePool& frames() noexcept { return frames_; }

  MessageHandle send(std::span<const std::byte> input, int peer, dtrain::backend::message_passing::TagClass tag_class) {
    const std::lock_guard lock(network_->mutex_);
    MemoryNetwork::Message& message = next(rank_, peer, tag_class, false);
    message.input = input.data();
    message.sent = input.size();
    message.has_sender = true;
    deliver(message);
    return {&message, false};
  }

  MessageHandle recv(std::span<std::byte> output, int peer, dtrain::backend::message_passing::TagClass tag_class) {
    const std::lock_guard lock(network_->mutex_);
    MemoryNetwork::Message& message = next(peer, rank_, tag_class, true);
    message.output = output.data();
    message.room = output.size();
    message.has_receiver = true;
    deliver(message);
    return {&message, true};
  }

  struct Awaiter {
    MemoryEndpoint& endpoint;
    MessageHandle handle;
    bool await_ready() const { return true; }
    void await_suspend(std::coroutine_handle<>) const {}
    std::size_t await_resume() const { return endpoint.block_until_done(handle); }
  };
  Awaiter done(MessageHandle handle) { return {*this, handle}; }

 private:
  MemoryNetwork::Message& next(int from, int to, dtrain::backend::message_passing::TagClass tag_class, bool receives) {
    const int number = static_cast<int>(tag_class);
    MemoryNetwork::Message& message =
        network_->messages_[{from, to, number, network_->counts_[{from, to, number, receives}]++}];
    message.lost_an_end = message.lost_an_end || network_->ranks_that_left_.contains(receives ? from : to);
    return message;
  }

  void deliver(MemoryNetwork::Message& message) {
    if (message.has_sender && message.has_receiver && !message.lost_an_end) {
      if (message.sent > 0 && message.sent <= message.room) {
        std::memcpy(message.output, message.input, message.sent);
      }
      network_->changed_.notify_all();
    }
  }

  std::size_t block_until_done(MessageHandle handle) {
    if (handle.message == nullptr) throw std::logic_error("a handle that stands for no message was awaited");
    std::unique_lock lock(network_->mutex_);
    const MemoryNetwork::Message& message = *handle.message;
    const auto completed = [&] { return message.has_sender && message.has_receiver && !message.lost_an_end; };
    network_->changed_.wait_for(lock, std::chrono::seconds(10), [&] { return completed() || message.lost_an_end; });
    if (!completed()) throw dtrain::Error(dtrain::Errc::timeout, "a message of the memory endpoint had no other end");
    if (handle.receives && message.sent > message.room) {
      throw dtrain::Error(dtrain::Errc::disagreement, "a message is longer than the memory for it");
    }
    return message.sent;
  }

  std::shared_ptr<MemoryNetwork> network_;
  int rank_;
  int size_;
  dtrain::backend::message_passing::FramePool frames_;
};

}  // namespace support
