#pragma once
// What a store of the tests gives instead of a StoreCall: an operation that has been done.

#include <coroutine>
#include <type_traits>
#include <utility>

namespace support {

template <class T>
class [[nodiscard]] FinishedCall {
 public:
  explicit FinishedCall(T value) : value_(std::move(value)) {}
  T wait() { return std::move(value_); }
  bool await_ready() const noexcept { return true; }
  void await_suspend(std::coroutine_handle<>) const noexcept {}
  T await_resume() { return std::move(value_); }

 private:
  T value_;
};

template <>
class [[nodiscard]] FinishedCall<void> {
 public:
  void wait() const noexcept {}
  bool await_ready() const noexcept { return true; }
  void await_suspend(std::coroutine_handle<>) const noexcept {}
  void await_resume() const noexcept {}
};

}  // namespace support
