#pragma once
/// @file
/// StoreCall: a request to the job's store, sent once, by co_await or wait(). CompareSet: result of compare_set().

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "dtrain/async/task.hpp"
#include "dtrain/core/config.hpp"
#include "dtrain/core/deadline.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/rendezvous/protocol/message.hpp"

namespace DTRAIN_NAMESPACE::async {
class LoopHandle;
}

namespace DTRAIN_NAMESPACE::rendezvous {

using async::LoopHandle;
class StoreClient;

/// Result of compare_set.
/// @ingroup store
struct CompareSet {
  bool swapped = false;
  std::optional<std::string> now{};  ///< the key's value afterwards; empty if the key does not exist
};

/// A request and its session. The first call of send() or wait() sends it, once.
struct StoreRequest {
  /// Sends the request when the result is awaited, on the control loop.
  /// @throws see Store; Error (invalid_argument) if the request was already sent or moved from
  async::Task<Response> send();

  /// Sends the request on the control loop and blocks the calling thread. @throws as send
  Response wait();

  std::weak_ptr<StoreClient> client;
  std::shared_ptr<LoopHandle> loop_handle;  ///< null in a store whose calls are only awaited
  Request request;
  std::optional<Deadline> deadline;  ///< none: `timeout` from when it is sent
  std::chrono::nanoseconds timeout;
  std::shared_ptr<const std::function<void()>> before_wait{};  ///< see with_before_wait; null: none
  bool is_spent = false;                                       ///< sent, or moved from

 private:
  void spend();
  async::Task<Response> start();
};

/// Result of an operation of Store. Nothing is sent before `co_await call` (on the rank's control loop) or
/// `call.wait()` (on any other thread); use one of them, once. Destroying the awaiting coroutine cancels the request.
/// @tparam T value of the operation: void, string, optional string, vector of strings, int64_t, bool, CompareSet
/// @ingroup store
template <class T>
class [[nodiscard]] StoreCall {
  /// Part of the request that decode() needs: the desired value, or the number of keys.
  using Expected = std::conditional_t<std::is_same_v<T, CompareSet>, std::string, std::size_t>;

 public:
  using value_type = T;

  StoreCall(StoreRequest&& request) : request_(std::move(request)) {
    if constexpr (std::is_same_v<T, CompareSet>) {
      expected_ = request_.request.value;
    } else {
      expected_ = request_.request.keys.size();
    }
  }
  StoreCall(StoreCall&& other) noexcept : request_(std::move(other.request_)), expected_(std::move(other.expected_)) {
    other.request_.is_spent = true;
  }
  StoreCall& operator=(StoreCall&&) = delete;

  /// Blocking: until the store answers, at most until the deadline and a second more for its last response.
  /// Threads: not the control thread, where it throws Error (invalid_argument) instead of deadlocking.
  /// @throws see Store; Error (invalid_argument) if the call was already used
  T wait() { return decode(request_.wait(), std::move(expected_)); }

  /// Decodes the response when the coroutine resumes, without another coroutine frame.
  class Awaiter : public async::OwnedTaskAwaiter<Response> {
   public:
    Awaiter(async::Task<Response> response, Expected expected)
        : OwnedTaskAwaiter(std::move(response)), expected_(std::move(expected)) {}
    T await_resume() { return decode(OwnedTaskAwaiter::await_resume(), std::move(expected_)); }

   private:
    Expected expected_;
  };

  /// @throws as wait
  Awaiter operator co_await() { return Awaiter(request_.send(), std::move(expected_)); }

  /// Conversion to a Task, for functions that take one (when_all, with_deadline).
  operator async::Task<T>() && { return as_task(std::move(*this)); }

 private:
  static async::Task<T> as_task(StoreCall call) {
    if constexpr (std::is_void_v<T>) {
      co_await call;
    } else {
      T value = co_await call;
      co_return std::move(value);
    }
  }

  static T decode(Response response, [[maybe_unused]] Expected expected) {
    if constexpr (std::is_same_v<T, std::string>) {
      return std::move(response.text);
    } else if constexpr (std::is_same_v<T, std::optional<std::string>>) {
      return response.status == Status::missing ? T() : T(std::move(response.text));
    } else if constexpr (std::is_same_v<T, std::vector<std::string>>) {
      if (response.values.size() != expected) {
        throw_error(Errc::protocol, "getting {} keys: the store answered with {} values",
                    {expected, response.values.size()});
      }
      return std::move(response.values);
    } else if constexpr (std::is_same_v<T, std::int64_t>) {
      return response.number;
    } else if constexpr (std::is_same_v<T, bool>) {
      return response.status == Status::ok;
    } else if constexpr (std::is_same_v<T, CompareSet>) {
      if (response.number != 0) {
        return {true, std::move(expected)};
      }
      return {false, response.status == Status::ok ? std::optional(std::move(response.text)) : std::nullopt};
    } else {
      static_assert(std::is_void_v<T>);
    }
  }

  StoreRequest request_;
  Expected expected_;
};

}  // namespace DTRAIN_NAMESPACE::rendezvous
