#pragma once
/// @file
/// The concept Endpoint: point-to-point messages of one channel. Routine: the coroutine of an algorithm over it.

#include <array>
#include <concepts>
#include <coroutine>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <new>
#include <span>
#include <type_traits>
#include <utility>

#include "dtrain/core/version.hpp"

namespace DTRAIN_NAMESPACE::backend::message_passing {

/// Free lists of blocks, by size: an algorithm that ran before runs without an allocation. Threads: one at a time; a
/// thread that takes over a channel's work synchronizes with the previous one. Lifetime: outlives the frames.
class FramePool {
 public:
  FramePool() noexcept = default;
  FramePool(const FramePool&) = delete;
  FramePool& operator=(const FramePool&) = delete;
  ~FramePool() {
    for (FrameBlock* block : free_) {
      while (block != nullptr) {
        FrameBlock* const next = block->next;
        ::operator delete(block);
        block = next;
      }
    }
  }

  /// `bytes` at the alignment of new. @throws std::bad_alloc
  void* take(std::size_t bytes) {
    const std::size_t size = sizeof(FrameBlock) + bytes;
    const std::size_t list = size / step;
    if (list >= lists) {
      return new (::operator new(size)) FrameBlock{this, nullptr, list} + 1;
    }
    FrameBlock* const block = free_[list];
    if (block == nullptr) {
      return new (::operator new((list + 1) * step)) FrameBlock{this, nullptr, list} + 1;
    }
    free_[list] = block->next;
    return block + 1;
  }

  /// Returns a block to its pool.
  static void give_back(void* memory) noexcept {
    FrameBlock* const block = static_cast<FrameBlock*>(memory) - 1;
    if (block->list >= lists) {
      ::operator delete(block);
      return;
    }
    block->next = block->pool->free_[block->list];
    block->pool->free_[block->list] = block;
  }

 private:
  static constexpr std::size_t step = 128;  ///< list k has blocks of (k + 1) * step bytes
  static constexpr std::size_t lists = 64;  ///< a frame beyond 8 KiB is not pooled, which is only slower

  struct alignas(std::max_align_t) FrameBlock {
    FramePool* pool;
    FrameBlock* next;
    std::size_t list;
  };

  std::array<FrameBlock*, lists> free_{};
};

/// A coroutine that starts when resumed or awaited. Destroying it while suspended destroys all its locals, including
/// the child routine that it awaits. Its first parameter must have `frames()`, the pool of its frame.
///
///     Routine child = ring(endpoint, work);  // named: g++ 12 destroys temporaries in a co_await expression twice
///     co_await child;
///
/// Over an endpoint that blocks in `done`, it never suspends: one resume() runs it to its end.
/// Threads: one at a time. Lifetime: the pool and the targets of its reference parameters outlive it.
class [[nodiscard]] Routine {
 public:
  class promise_type;

  Routine() noexcept = default;
  Routine(Routine&& other) noexcept : frame_(std::exchange(other.frame_, nullptr)) {}
  Routine& operator=(Routine&& other) noexcept {
    if (this != &other) {
      destroy();
      frame_ = std::exchange(other.frame_, nullptr);
    }
    return *this;
  }
  ~Routine() { destroy(); }

  void destroy() noexcept {
    if (frame_) {
      std::exchange(frame_, nullptr).destroy();
    }
  }

  /// Runs the routine until it suspends or ends, for a transport, which does not await it.
  void resume() const { frame_.resume(); }
  bool done() const noexcept { return frame_.done(); }

  /// Requires done(). @throws the coroutine's exception
  void check() const;

  class Awaiter;
  Awaiter operator co_await() & noexcept;
  void operator co_await() && = delete;

 private:
  explicit Routine(std::coroutine_handle<promise_type> frame) noexcept : frame_(frame) {}

  std::coroutine_handle<promise_type> frame_;
};

/// The pool that a routine's first parameter provides.
struct FrameSource {
  template <class First>
  requires requires(First& first) {
    { first.frames() } -> std::same_as<FramePool&>;
  }
  FrameSource(First& first) noexcept : pool(first.frames()) {}  // NOLINT(google-explicit-constructor): see operator new

  FramePool& pool;
};

/// Converts from any further parameter, which operator new ignores.
struct Anything {
  Anything() noexcept = default;
  template <class T>
  Anything(const T& /*argument*/) noexcept {}  // NOLINT(google-explicit-constructor): see operator new
};

/// Completion resumes the awaiting parent. Frames come from the first parameter's pool. operator new is no template,
/// because g++ 12 would warn that operator delete does not match it.
class Routine::promise_type {
 public:
  static void* operator new (std::size_t bytes, FrameSource first, Anything = {}, Anything = {}, Anything = {},
                             Anything = {}, Anything = {}) {
    return first.pool.take(bytes);
  }
  static void operator delete(void* memory) noexcept { FramePool::give_back(memory); }

  struct FinalAwaiter {
    bool await_ready() const noexcept { return false; }
    std::coroutine_handle<> await_suspend(std::coroutine_handle<promise_type> finished) const noexcept {
      const std::coroutine_handle<> parent = finished.promise().parent_;
      return parent ? parent : std::noop_coroutine();
    }
    void await_resume() const noexcept {}
  };

  Routine get_return_object() noexcept { return Routine(std::coroutine_handle<promise_type>::from_promise(*this)); }
  std::suspend_always initial_suspend() const noexcept { return {}; }
  FinalAwaiter final_suspend() const noexcept { return {}; }
  void return_void() const noexcept {}
  void unhandled_exception() noexcept { exception_ = std::current_exception(); }

 private:
  friend Routine;

  std::coroutine_handle<> parent_;
  std::exception_ptr exception_;
};

inline void Routine::check() const {
  if (frame_.promise().exception_) {
    std::rethrow_exception(frame_.promise().exception_);
  }
}

/// Runs the child inside await_suspend and suspends the parent only if the child did not end at once.
class Routine::Awaiter {
 public:
  explicit Awaiter(Routine& child) noexcept : child_(child) {}

  bool await_ready() const noexcept { return false; }
  bool await_suspend(std::coroutine_handle<> parent) const {
    child_.frame_.resume();
    if (child_.frame_.done()) {
      return false;
    }
    child_.frame_.promise().parent_ = parent;
    return true;
  }
  void await_resume() const { child_.check(); }

 private:
  Routine& child_;
};

inline Routine::Awaiter Routine::operator co_await() & noexcept {
  return Awaiter(*this);
}

/// Each class has its own message sequence for each direction between two ranks: the k-th recv gets the k-th send.
enum class TagClass : std::uint8_t {
  collective,  ///< messages of the algorithms
  direct,      ///< the user's send and recv
};
inline constexpr int tag_class_count = 2;

/// `done` of an endpoint that blocks. The routine is suspended only if the wait was ended, and then never resumed.
template <class E>
struct BlockingAwaiter {
  E& endpoint;
  typename E::MessageHandle handle;

  bool await_ready() const { return endpoint.block_until_done(handle); }
  void await_suspend(std::coroutine_handle<>) const noexcept {}
  std::size_t await_resume() const { return endpoint.take(handle); }
};

// clang-format off

/// This rank (0..size-1), the number of ranks, and the pool for coroutine frames.
template <class E>
concept HasRankAndSize = requires(E& endpoint) {
  { endpoint.rank() } noexcept -> std::same_as<int>;
  { endpoint.size() } noexcept -> std::same_as<int>;
  { endpoint.frames() } noexcept -> std::same_as<FramePool&>;
};

/// Starts a message to or from another rank. Any length, including 0; the MessageHandle identifies it.
template <class E>
concept CanStartMessages =
    std::is_trivially_copyable_v<typename E::MessageHandle> && std::default_initializable<typename E::MessageHandle> &&
    requires(E& endpoint, std::span<const std::byte> input, std::span<std::byte> output, int peer, TagClass tag_class) {
      { endpoint.send(input, peer, tag_class) } -> std::same_as<typename E::MessageHandle>;
      { endpoint.recv(output, peer, tag_class) } -> std::same_as<typename E::MessageHandle>;
    };

/// `const std::size_t bytes = co_await endpoint.done(handle);` waits until the message is complete and returns its
/// length, which may be below a receiver's memory. Each handle is awaited once.
template <class E>
concept CanFinishMessages = requires(E& endpoint, typename E::MessageHandle handle) {
  { endpoint.done(handle).await_ready() } -> std::same_as<bool>;
  { endpoint.done(handle).await_resume() } -> std::same_as<std::size_t>;
};

/// Lifetime: memory outlives its message. Threads: the one that runs the routine.
/// Errors: a message longer than its memory is an Error (disagreement). An operation that ends early either throws out
/// of `done`, or its suspended coroutine is destroyed. Algorithms therefore clean up in destructors, which must not use
/// the endpoint. The endpoint itself handles messages that are then in flight.
template <class E>
concept Endpoint = HasRankAndSize<E> && CanStartMessages<E> && CanFinishMessages<E>;
// clang-format on

}  // namespace DTRAIN_NAMESPACE::backend::message_passing
