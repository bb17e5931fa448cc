#pragma once
/// @file
/// StoreCall: a request to the store that is sent when it is awaited or waited for.

#include <coroutine>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "dtrain/async/task/task.hpp"
#include "dtrain/core/config.hpp"
#include "dtrain/core/deadline.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/rendezvous/protocol/request.hpp"

namespace DTRAIN_NAMESPACE::rendezvous {

class LoopHandle;
class StoreClient;

/// What compare_set found and did.
struct CompareSet {
  bool swapped = false;
  std::optional<std::string> now{};  ///< the key's value afterwards; nothing where it does not exist
};

/// A request with the session that it goes to.
struct StoreRequest {
  /// Sends the request when it is awaited. @throws see Store
  async::Task<Response> send();

  /// Sends the request on the control loop and blocks the calling thread. @throws see Store
  Response wait();

  std::weak_ptr<StoreClient> client;
  std::shared_ptr<LoopHandle> loop_handle;
  Request request;
  Deadline deadline;
};

/// What a call of Store gives: nothing is sent before `co_await call` (on the rank's control loop) or `call.wait()`
/// (on any other thread). Each is done once. A call that is destroyed while it is awaited takes its request back.
/// @tparam T what the operation gives: void, text, optional text, texts, a number, whether it existed, CompareSet
template <class T>
class [[nodiscard]] StoreCall {
 public:
  using value_type = T;

  StoreCall(StoreRequest sent) : sent_(std::move(sent)), expected_{sent_.request.keys.size(), {}} {
    if constexpr (std::is_same_v<T, CompareSet>) {
      expected_.desired = sent_.request.value;
    }
  }

  /// Blocking: until the store has answered, until the deadline at most, or a moment longer (a second at most) for the
  /// store's last word. Threads: not the control loop's, where it throws Error (invalid_argument) instead of waiting
  /// for itself. @throws see Store
  T wait() { return decode(sent_.wait()); }

  class Awaiter;
  Awaiter operator co_await() { return Awaiter(*this); }

  /// The same as a Task, for what takes one (with_deadline, when_all).
  operator async::Task<T>() && { return as_task(std::move(*this)); }

 private:
  /// What of the request the answer is read by.
  struct Expected {
    std::size_t values;
    std::string desired;
  };

  static async::Task<T> as_task(StoreCall call) {
    if constexpr (std::is_void_v<T>) {
      co_await call;
    } else {
      T value = co_await call;
      co_return std::move(value);
    }
  }

  T decode(Response response) {
    if constexpr (std::is_same_v<T, std::string>) {
      return std::move(response.text);
    } else if constexpr (std::is_same_v<T, std::optional<std::string>>) {
      return response.status == Status::missing ? T() : T(std::move(response.text));
    } else if constexpr (std::is_same_v<T, std::vector<std::string>>) {
      if (response.values.size() != expected_.values) {
        throw Error(Errc::protocol, "getting " + std::to_string(expected_.values) + " keys: the store answered with " +
                                        std::to_string(response.values.size()) + " values");
      }
      return std::move(response.values);
    } else if constexpr (std::is_same_v<T, std::int64_t>) {
      return response.number;
    } else if constexpr (std::is_same_v<T, bool>) {
      return response.status == Status::ok;
    } else if constexpr (std::is_same_v<T, CompareSet>) {
      if (response.number != 0) {
        return {true, std::move(expected_.desired)};
      }
      return {false, response.status == Status::ok ? std::optional(std::move(response.text)) : std::nullopt};
    } else {
      static_assert(std::is_void_v<T>);
    }
  }

  StoreRequest sent_;
  Expected expected_;
};

/// Reads the answer when the coroutine goes on, without a frame of its own.
template <class T>
class StoreCall<T>::Awaiter {
 public:
  explicit Awaiter(StoreCall& call) : call_(call), answer_(call.sent_.send()), inner_(answer_) {}
  Awaiter(const Awaiter&) = delete;
  Awaiter& operator=(const Awaiter&) = delete;

  bool await_ready() const noexcept { return inner_.await_ready(); }
  bool await_suspend(std::coroutine_handle<> parent) { return inner_.await_suspend(parent); }
  T await_resume() { return call_.decode(inner_.await_resume()); }

 private:
  StoreCall& call_;
  async::Task<Response> answer_;
  async::Task<Response>::Awaiter inner_;
};

}  // namespace DTRAIN_NAMESPACE::rendezvous
