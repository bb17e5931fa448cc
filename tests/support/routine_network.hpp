#pragma once
/// @file
/// An endpoint between many ranks that are routines of one thread, which counts what each rank sends.

#include <coroutine>
#include <cstddef>
#include <cstring>
#include <deque>
#include <map>
#include <span>
#include <stdexcept>
#include <tuple>
#include <vector>

#include "dtrain/backend/message_passing/endpoint.hpp"
#include "dtrain/core/error.hpp"

namespace support {

/// What the ranks share. A message completes when both ends have started it: nothing is buffered.
class RoutineNetwork {
 public:
  struct Message {
    std::span<const std::byte> input{};
    std::span<std::byte> output{};
    std::coroutine_handle<> sender{};    ///< waits
    std::coroutine_handle<> receiver{};  ///< waits
    bool has_sender = false;
    bool has_receiver = false;

    bool completed() const { return has_sender && has_receiver; }
  };

  struct Sent {
    std::size_t messages = 0;
    std::size_t bytes = 0;
    bool operator==(const Sent&) const = default;
  };

  explicit RoutineNetwork(int size) : sent(static_cast<std::size_t>(size)) {}

  /// Resumes the routines that a completed message lets go on, until none is left.
  void run() {
    while (!ready_.empty()) {
      const std::coroutine_handle<> next = ready_.front();
      ready_.pop_front();
      next.resume();
    }
  }

  std::vector<Sent> sent;  ///< by each rank

 private:
  friend class RoutineEndpoint;
  using Direction = std::tuple<int, int, int>;  // from, to, tag class

  /// The oldest message that lacks this end, or a new one.
  Message& next(const Direction& direction, bool receives) {
    std::deque<Message*>& waiting = waiting_[direction];
    if (!waiting.empty() && (receives ? !waiting.front()->has_receiver : !waiting.front()->has_sender)) {
      Message& message = *waiting.front();
      waiting.pop_front();
      return message;
    }
    waiting.push_back(&messages_.emplace_back());
    return *waiting.back();
  }

  void deliver(Message& message) {
    if (message.completed()) {
      if (!message.input.empty() && message.input.size() <= message.output.size()) {
        std::memcpy(message.output.data(), message.input.data(), message.input.size());
      }
      for (const std::coroutine_handle<> waiter : {message.sender, message.receiver}) {
        if (waiter) {
          ready_.push_back(waiter);
        }
      }
    }
  }

  std::deque<Message> messages_;
  std::map<Direction, std::deque<Message*>> waiting_;  ///< all of one end
  std::deque<std::coroutine_handle<>> ready_;
};

class RoutineEndpoint {
 public:
  struct MessageHandle {
    RoutineNetwork::Message* message = nullptr;
    bool receives = false;
  };

  RoutineEndpoint(RoutineNetwork& network, int rank) : network_(network), rank_(rank) {}
  RoutineEndpoint(const RoutineEndpoint&) = delete;
  RoutineEndpoint& operator=(const RoutineEndpoint&) = delete;

  int rank() const noexcept { return rank_; }
  int size() const noexcept { return static_cast<int>(network_.sent.size()); }
  dtrain::backend::message_passing::FramePool& frames() noexcept { return frames_; }

  MessageHandle send(std::span<const std::byte> input, int peer, dtrain::backend::message_passing::TagClass tag_class) {
    RoutineNetwork::Sent& sent = network_.sent[static_cast<std::size_t>(rank_)];
    sent.messages += 1;
    sent.bytes += input.size();
    RoutineNetwork::Message& message = network_.next({rank_, peer, static_cast<int>(tag_class)}, false);
    message.input = input;
    message.has_sender = true;
    network_.deliver(message);
    return {&message, false};
  }

  MessageHandle recv(std::span<std::byte> output, int peer, dtrain::backend::message_passing::TagClass tag_class) {
    RoutineNetwork::Message& message = network_.next({peer, rank_, static_cast<int>(tag_class)}, true);
    message.output = output;
    message.has_receiver = true;
    network_.deliver(message);
    return {&message, true};
  }

  struct Awaiter {
    MessageHandle handle;
    bool await_ready() const {
      if (handle.message == nullptr) throw std::logic_error("a handle that stands for no message was awaited");
      return handle.message->completed();
    }
    void await_suspend(std::coroutine_handle<> waiter) const {
      (handle.receives ? handle.message->receiver : handle.message->sender) = waiter;
    }
    std::size_t await_resume() const {
      if (handle.receives && handle.message->input.size() > handle.message->output.size()) {
        throw dtrain::Error(dtrain::Errc::disagreement, "a message is longer than the memory for it");
      }
      return handle.message->input.size();
    }
  };
  Awaiter done(MessageHandle handle) { return {handle}; }

 private:
  RoutineNetwork& network_;
  int rank_;
  dtrain::backend::message_passing::FramePool frames_;
};

}  // namespace support
