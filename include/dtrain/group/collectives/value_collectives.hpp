#pragma once
/// @file
/// ValueCollectives: collectives of single values, and of strings and vectors whose length only the root knows.

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <type_traits>
#include <vector>

#include "dtrain/backend/communicator.hpp"
#include "dtrain/core/types/dtype.hpp"
#include "dtrain/core/types/reduce_op.hpp"
#include "dtrain/group/collectives/buffers.hpp"

namespace DTRAIN_NAMESPACE::group {

namespace detail {

/// One value, in no container and no buffer: a number, bool or struct. Others, such as std::pair, are refused with a
/// sentence.
template <class T, class Plain = std::remove_cv_t<T>>
concept SingleValue = !std::is_convertible_v<const Plain&, MovedReadBuffer> &&
                      !std::is_convertible_v<Plain&, MovedWriteBuffer> && !requires {
  typename ElementOf<const Plain>;
};

/// Fails to compile, with the reason, if T cannot be moved as bytes.
template <class T>
constexpr bool check_moved() noexcept {
  static_assert(
      MovedValue<T>,
      "dtrain: collectives move a value as bytes, and this one is not trivially copyable, or is a pointer or a "
      "view: give a trivially copyable struct (std::pair and std::tuple are none), or serialise it to a "
      "std::string for broadcast_resized");
  return MovedValue<T>;
}

/// A container of MovedValues with a length: std::string, std::vector.
template <class Values>
concept ResizableValues = WritableMovedValues<Values> && requires(Values& values) {
  values.resize(std::size_t{});
};

template <class P>
concept Pointer = std::is_pointer_v<std::remove_reference_t<P>>;

/// Fails to compile, with what to give in place of a pointer and a length.
template <class P>
constexpr void refuse_pointer() noexcept {
  static_assert(!Pointer<P>, "dtrain: a pointer and a length are one argument here: give std::span(pointer, count)");
}

}  // namespace detail

/// Collectives of a ProcessGroup that take or give single values. All are blocking, and on host memory with every
/// backend: call them with the same types on all ranks. Errors and threads as Collectives, whose base class it is.
/// @ingroup collectives
template <class Group, class State>
class ValueCollectives {
 public:
  using Communicator = typename State::Communicator;

  /// Reduces one number: `loss = group.all_reduce(loss, dtrain::ReduceOp::average)`.
  /// @returns the reduction of every rank's `value`
  template <class Number>
  requires(std::is_arithmetic_v<Number>) [[nodiscard]] Number
      all_reduce(Number value, ReduceOp op = ReduceOp::sum) const {
    return reduce_one(value, op);
  }
  template <detail::SingleValue T>
  requires(!std::is_arithmetic_v<T>) [[nodiscard]] T all_reduce(const T& value, ReduceOp op = ReduceOp::sum) const {
    return reduce_one(value, op);
  }

  /// Whether `condition` is true on at least one rank: `if (group.any(diverged)) break;`.
  [[nodiscard]] bool any(bool condition) const { return all_reduce(condition, ReduceOp::max); }
  /// Whether `condition` is true on every rank.
  [[nodiscard]] bool all(bool condition) const { return all_reduce(condition, ReduceOp::min); }

  /// @returns every rank's `value`, by rank: a number, or a trivially copyable struct
  template <detail::SingleValue T>
  [[nodiscard]] std::vector<T> all_gather(const T& value) const requires backend::CanAllGather<Communicator> {
    static_assert(!std::is_same_v<T, bool>, "dtrain: std::vector<bool> has no memory for each element: give a char");
    if constexpr (detail::check_moved<T>()) {
      std::vector<T> values(static_cast<std::size_t>(self().world_size()), value);
      self().all_gather(std::span(std::addressof(value), 1), values);
      return values;
    }
  }

  /// `value`, a number or a trivially copyable struct, gets rank `root`'s.
  template <detail::SingleValue T>
  void broadcast(T& value, int root) const {
    static_assert(!std::is_const_v<T>,
                  "dtrain: the value is const, and broadcast writes to it on every rank but the root");
    if constexpr (detail::check_moved<std::remove_const_t<T>>() && !std::is_const_v<T>) {
      self().broadcast(std::span(std::addressof(value), 1), root);
    }
  }

  /// A std::string or std::vector gets rank `root`'s length and content. Two broadcasts.
  template <detail::ResizableValues Values>
  void broadcast_resized(Values& values, int root) const {
    std::uint64_t size = values.size();
    broadcast(size, root);
    values.resize(static_cast<std::size_t>(size));
    self().broadcast(std::span(values), root);
  }

  /// @name Mistakes with a sentence: a pointer and a length
  /// @{
  template <detail::Pointer P, std::integral N, class... Rest>
  void all_reduce(P&&, N, Rest&&...) const {
    detail::refuse_pointer<P>();
  }
  template <detail::Pointer P, std::integral N, class... Rest>
  void broadcast(P&&, N, Rest&&...) const {
    detail::refuse_pointer<P>();
  }
  template <detail::Pointer P, std::integral N, class... Rest>
  void reduce(P&&, N, Rest&&...) const {
    detail::refuse_pointer<P>();
  }
  template <detail::Pointer P, std::integral N, class... Rest>
  void all_gather(P&&, N, Rest&&...) const {
    detail::refuse_pointer<P>();
  }
  template <detail::Pointer P, std::integral N, class... Rest>
  void send(P&&, N, Rest&&...) const {
    detail::refuse_pointer<P>();
  }
  template <detail::Pointer P, std::integral N, class... Rest>
  void recv(P&&, N, Rest&&...) const {
    detail::refuse_pointer<P>();
  }
  /// @}

 private:
  template <class T>
  T reduce_one(T result, ReduceOp op) const {
    static_assert(ReducedValue<T>,
                  "dtrain: all_reduce(value, op) takes one number of a type that dtrain reduces (the concept "
                  "group::ReducedValue, in dtrain/group/collectives/buffers.hpp): convert others, to double or "
                  "std::int64_t for example; for several give a buffer, for a trivially copyable struct (std::pair is "
                  "none) a function in place of the operation");
    if constexpr (ReducedValue<T>) {
      self().all_reduce(std::span(std::addressof(result), 1), op);
    }
    return result;
  }

  const Group& self() const noexcept { return static_cast<const Group&>(*this); }
};

}  // namespace DTRAIN_NAMESPACE::group
