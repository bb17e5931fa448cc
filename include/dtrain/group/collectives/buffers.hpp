#pragma once
/// @file
/// Buffer arguments of a process group's collectives: WriteBuffer, ReadBuffer, and BufferOf for a library's tensors.

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "dtrain/core/config.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/core/types/buffer_view.hpp"
#include "dtrain/core/types/reduce_op.hpp"
#include "dtrain/core/types/tensor_view.hpp"

namespace DTRAIN_NAMESPACE::group {

/// An Element that collectives reduce: all but the 8-bit floats.
/// @ingroup collectives
template <class T>
concept ReducedElement = Element<T> && !is_float8(dtype_of<T>::value);

/// Meaning of a buffer's elements beyond their DType. It decides which reductions are right.
enum class ElementMeaning : std::uint8_t {
  number,           ///< every reduction
  flag,             ///< 0 or 1: not sum and average, which give other values
  bytes,            ///< parts of other types: no reduction
  part_of_complex,  ///< real and imaginary parts in turn: sum and average only, which treat the parts apart
};

/// The element type, perhaps const, of contiguous memory.
template <class Values>
using ElementOf = typename decltype(std::span(std::declval<Values&>()))::element_type;

namespace detail {

/// std::complex of float or double, or another library's with the same members. (The header <complex> is not needed.)
template <class T>
concept ComplexNumber = std::is_trivially_copyable_v<T> && requires(const T& number) {
  typename T::value_type;
  number.real();
  number.imag();
} &&(std::is_same_v<typename T::value_type, float> || std::is_same_v<typename T::value_type, double>)&&sizeof(T) ==
    2 * sizeof(typename T::value_type);

/// Objects that refer to other memory, by the forms that are known: what is moved would be their addresses.
template <class T>
inline constexpr bool refers_to_memory = std::is_pointer_v<T> || std::is_member_pointer_v<T> ||
                                         std::ranges::enable_view<T> ||
                                         std::is_convertible_v<const T&, ConstBufferView> ||
                                         std::is_base_of_v<TensorView, T> || requires(const T& object) {
  object.data_handle();
};
template <class T>
inline constexpr bool refers_to_memory<std::reference_wrapper<T>> = true;

/// Memory that collectives move as bytes means the same on another rank.
template <class T>
concept MovedAsBytes = std::is_trivially_copyable_v<T> && !refers_to_memory<T>;

/// How collectives see a C++ element.
struct ElementForm {
  DType dtype;
  std::uint32_t unit;  ///< elements of `dtype` in one
  ElementMeaning meaning = ElementMeaning::number;
};

/// Requires: Element<T> || MovedAsBytes<T>.
template <class T>
constexpr ElementForm form_of() noexcept {
  if constexpr (Element<T>) {
    return {dtype_of<T>::value, 1};
  } else if constexpr (std::is_same_v<T, bool>) {
    return {DType::u8, sizeof(bool), ElementMeaning::flag};
  } else if constexpr (ComplexNumber<T>) {
    return {dtype_of<typename T::value_type>::value, 2, ElementMeaning::part_of_complex};
  } else {
    return {DType::u8, sizeof(T), ElementMeaning::bytes};
  }
}

}  // namespace detail

/// A C++ type whose values collectives reduce: a ReducedElement, bool (by min, max and product), or a complex number of
/// float or double (by sum and average).
/// @ingroup collectives
template <class T>
concept ReducedValue = ReducedElement<T> || std::is_same_v<T, bool> || detail::ComplexNumber<T>;

/// A C++ type whose values collectives move: an Element, or any trivially copyable type that is no pointer and no view
/// of other memory. A pointer within a struct is moved, and means nothing on another rank.
/// @ingroup collectives
template <class T>
concept MovedValue = Element<T> || detail::MovedAsBytes<T>;

/// Contiguous host memory of ReducedValues: std::span of any extent, std::vector, std::array, T[n].
/// @ingroup collectives
template <class Values>
concept HostValues = ReducedValue<std::remove_cv_t<ElementOf<Values>>>;

/// HostValues whose elements are not const.
/// @ingroup collectives
template <class Values>
concept WritableHostValues = HostValues<Values> && !std::is_const_v<ElementOf<Values>>;

namespace detail {

template <class Values>
concept MovedValues = MovedValue<std::remove_cv_t<ElementOf<Values>>>;
template <class Values>
concept WritableMovedValues = MovedValues<Values> && !std::is_const_v<ElementOf<Values>>;

/// Values that collectives move and do not reduce.
template <class Values>
concept TransferOnlyValues = MovedValues<Values> && !HostValues<Values>;

template <class Values>
inline constexpr bool is_vector_of_bool = false;
template <class Allocator>
inline constexpr bool is_vector_of_bool<std::vector<bool, Allocator>> = true;

/// Values that collectives cannot move.
template <class Values>
concept UnmovedValues = is_vector_of_bool<std::remove_cv_t<Values>> ||
    (requires { typename ElementOf<Values>; } && !MovedValues<Values>);

/// Fails to compile, with the reason.
template <class Values>
constexpr bool refuse_reduction() noexcept {
  using T = std::remove_cv_t<ElementOf<Values>>;
  static_assert(!std::is_arithmetic_v<T> || Element<T>,
                "dtrain: numbers of this type can be moved (broadcast, all_gather, send, recv), and not reduced: copy "
                "them to std::int32_t, std::int64_t, std::uint64_t or double (the concept dtrain::Element, in "
                "dtrain/core/types/dtype.hpp)");
  static_assert(std::is_arithmetic_v<T> || Element<T>,
                "dtrain: elements of this type can be moved (broadcast, all_gather, send, recv), and a ReduceOp does "
                "not say how to reduce them: reduce their numbers, one array for each member");
  static_assert(!Element<T> || ReducedElement<T>,
                "dtrain: floats of 8 bits can be moved (broadcast, all_gather, send, recv), and not reduced, because "
                "they have too few digits for a sum or an average: copy them to float, dtrain::float16 or "
                "dtrain::bfloat16");
  return false;
}

/// Fails to compile, with the reason.
template <class Values>
constexpr bool refuse_transfer() noexcept {
  static_assert(!is_vector_of_bool<std::remove_cv_t<Values>>,
                "dtrain: std::vector<bool> has no memory with one value for each element: use std::vector<char>");
  static_assert(is_vector_of_bool<std::remove_cv_t<Values>>,
                "dtrain: collectives move elements as bytes, and these are not trivially copyable, or are pointers or "
                "views: give the elements' own numbers, a trivially copyable struct (std::pair and std::tuple are "
                "none), or serialise them to a std::string for broadcast_resized");
  return false;
}

template <class Values>
inline constexpr bool is_span = false;
template <class T, std::size_t Extent>
inline constexpr bool is_span<std::span<T, Extent>> = true;

/// View of host memory, writable unless T is const.
template <class T, std::size_t Extent>
auto view_of(std::span<T, Extent> values) noexcept {
  using View = std::conditional_t<std::is_const_v<T>, ConstBufferView, BufferView>;
  using Byte = std::conditional_t<std::is_const_v<T>, const std::byte, std::byte>;
  constexpr ElementForm form = form_of<std::remove_const_t<T>>();
  return View{reinterpret_cast<Byte*>(values.data()), values.size() * form.unit, form.dtype, {}};
}

}  // namespace detail

/// @throws Error (unsupported) for a reduction whose results do not have the meaning
void require_reduction(ElementMeaning meaning, ReduceOp op);

/// For collectives with counts, which are in elements. @throws Error (invalid_argument) if the input's elements are of
/// another size than the output's
void require_equal_units(std::uint32_t input, std::uint32_t output);

/// Buffer of a library's tensor type T (torch::Tensor). The library's adapter specialises it, so that collectives take
/// such tensors:
/// - `static BufferView view(const T&)`: the elements in the order of the indices. It throws for other tensors.
/// - `static ElementMeaning meaning(const T&)`
/// - `static void will_write(const T&)`: called before a collective writes to the elements.
template <class T>
struct BufferOf;

template <class T>
concept LibraryTensor = requires(const T& tensor) {
  { BufferOf<T>::view(tensor) } -> std::same_as<BufferView>;
  { BufferOf<T>::meaning(tensor) } -> std::same_as<ElementMeaning>;
  BufferOf<T>::will_write(tensor);
};

// Constructors are implicit: every contiguous container is accepted as a buffer.
// NOLINTBEGIN(google-explicit-constructor)

/// Output of a collective: an lvalue container, or a span. Lifetime: the memory outlives the work.
/// @ingroup collectives
struct WriteBuffer : BufferView {
  constexpr WriteBuffer(const BufferView& view) noexcept : BufferView(view) {}
  constexpr WriteBuffer(const TensorView& view) noexcept : BufferView(view.flat()) {}

  template <class T, std::size_t Extent>
  requires(!std::is_const_v<T> && ReducedValue<T>) WriteBuffer(std::span<T, Extent> values)
  noexcept : WriteBuffer(values, detail::form_of<T>()) {}

  template <WritableHostValues Values>
  requires(!detail::is_span<std::remove_const_t<Values>>) WriteBuffer(Values& values)
  noexcept : WriteBuffer(std::span(values)) {}

  /// @throws as BufferOf<T>::view
  template <LibraryTensor T>
  WriteBuffer(const T& tensor) : BufferView(BufferOf<T>::view(tensor)), meaning(BufferOf<T>::meaning(tensor)) {
    unit = meaning == ElementMeaning::part_of_complex ? 2 : 1;
    BufferOf<T>::will_write(tensor);
  }
  template <LibraryTensor T>
  WriteBuffer(const T&&) = delete;  // the result of `tensor.to(type)` would be lost

  template <detail::TransferOnlyValues Values>
  requires(!std::is_const_v<ElementOf<Values>>) WriteBuffer(Values&&)
  noexcept { static_cast<void>(detail::refuse_reduction<Values>()); }
  template <class Values>
  requires detail::UnmovedValues<std::remove_reference_t<Values>> WriteBuffer(Values&&)
  noexcept { static_cast<void>(detail::refuse_transfer<std::remove_reference_t<Values>>()); }

  ElementMeaning meaning = ElementMeaning::number;
  std::uint32_t unit = 1;  ///< elements of the view in one of the program's; counts are in the program's

 protected:
  template <class T, std::size_t Extent>
  WriteBuffer(std::span<T, Extent> values, detail::ElementForm form) noexcept
      : BufferView(detail::view_of(values)), meaning(form.meaning), unit(form.unit) {}
};

/// Input of a collective. Lifetime: the memory outlives the work.
/// @ingroup collectives
struct ReadBuffer : ConstBufferView {
  constexpr ReadBuffer(const ConstBufferView& view) noexcept : ConstBufferView(view) {}
  constexpr ReadBuffer(const BufferView& view) noexcept : ConstBufferView(view) {}
  constexpr ReadBuffer(const TensorView& view) noexcept : ConstBufferView(view.flat()) {}
  constexpr ReadBuffer(const WriteBuffer& buffer) noexcept
      : ConstBufferView(buffer), meaning(buffer.meaning), unit(buffer.unit) {}

  template <HostValues Values>
  ReadBuffer(const Values& values) noexcept
      : ReadBuffer(std::span(values), detail::form_of<std::remove_cv_t<ElementOf<Values>>>()) {}

  /// @throws as BufferOf<T>::view
  template <LibraryTensor T>
  ReadBuffer(const T& tensor) : ConstBufferView(BufferOf<T>::view(tensor)), meaning(BufferOf<T>::meaning(tensor)) {
    unit = meaning == ElementMeaning::part_of_complex ? 2 : 1;
  }

  template <detail::TransferOnlyValues Values>
  ReadBuffer(const Values&) noexcept {
    static_cast<void>(detail::refuse_reduction<Values>());
  }
  template <detail::UnmovedValues Values>
  ReadBuffer(const Values&) noexcept {
    static_cast<void>(detail::refuse_transfer<Values>());
  }

  ElementMeaning meaning = ElementMeaning::number;
  std::uint32_t unit = 1;  ///< WriteBuffer's, of the input

 protected:
  template <class T, std::size_t Extent>
  ReadBuffer(std::span<T, Extent> values, detail::ElementForm form) noexcept
      : ConstBufferView(detail::view_of(values)), meaning(form.meaning), unit(form.unit) {}
};

/// Output of a collective that does not reduce: MovedValues. (Its constructors repeat the base's: clang 14 hides
/// inherited constructors that differ in their constraints only.)
/// @ingroup collectives
struct MovedWriteBuffer : WriteBuffer {
  constexpr MovedWriteBuffer(const BufferView& view) noexcept : WriteBuffer(view) {}
  constexpr MovedWriteBuffer(const TensorView& view) noexcept : WriteBuffer(view) {}
  constexpr MovedWriteBuffer(const WriteBuffer& buffer) noexcept : WriteBuffer(buffer) {}

  template <class T, std::size_t Extent>
  requires(!std::is_const_v<T> && MovedValue<T>) MovedWriteBuffer(std::span<T, Extent> values)
  noexcept : WriteBuffer(values, detail::form_of<T>()) {}

  template <detail::WritableMovedValues Values>
  requires(!detail::is_span<std::remove_const_t<Values>>) MovedWriteBuffer(Values& values)
  noexcept : MovedWriteBuffer(std::span(values)) {}

  template <LibraryTensor T>
  MovedWriteBuffer(const T& tensor) : WriteBuffer(tensor) {}
  template <LibraryTensor T>
  MovedWriteBuffer(const T&&) = delete;

  template <class Values>
  requires detail::UnmovedValues<std::remove_reference_t<Values>> MovedWriteBuffer(Values&& values)
  noexcept : WriteBuffer(std::forward<Values>(values)) {}
};

/// Input of a collective that does not reduce.
/// @ingroup collectives
struct MovedReadBuffer : ReadBuffer {
  constexpr MovedReadBuffer(const ConstBufferView& view) noexcept : ReadBuffer(view) {}
  constexpr MovedReadBuffer(const BufferView& view) noexcept : ReadBuffer(view) {}
  constexpr MovedReadBuffer(const TensorView& view) noexcept : ReadBuffer(view) {}
  constexpr MovedReadBuffer(const ReadBuffer& buffer) noexcept : ReadBuffer(buffer) {}
  constexpr MovedReadBuffer(const WriteBuffer& buffer) noexcept : ReadBuffer(buffer) {}

  template <detail::MovedValues Values>
  MovedReadBuffer(const Values& values) noexcept
      : ReadBuffer(std::span(values), detail::form_of<std::remove_cv_t<ElementOf<Values>>>()) {}

  template <LibraryTensor T>
  MovedReadBuffer(const T& tensor) : ReadBuffer(tensor) {}

  template <detail::UnmovedValues Values>
  MovedReadBuffer(const Values& values) noexcept : ReadBuffer(values) {}
};

namespace detail {

/// Whether an argument of type `Values&&` is a temporary that owns its memory.
template <class Values>
inline constexpr bool is_temporary_owner =
    !std::is_lvalue_reference_v<Values> && !std::ranges::enable_borrowed_range<std::remove_cv_t<Values>> &&
    (MovedValues<Values> || LibraryTensor<std::remove_cv_t<Values>>);

}  // namespace detail

/// Input of a collective that is called with a stream: what `Buffer`, a ReadBuffer or MovedReadBuffer, takes, but no
/// temporary that owns its memory (a std::vector that a function returns).
/// @ingroup collectives
template <class Buffer>
struct EnqueuedInput : Buffer {
  template <std::convertible_to<Buffer> Values>
  EnqueuedInput(Values&& values) : Buffer(values) {
    static_assert(!detail::is_temporary_owner<Values>,
                  "dtrain: this temporary ends before the collective that is enqueued on the stream reads it: give it "
                  "a name that outlives the work, or call the collective without a stream, which blocks");
  }
};
// NOLINTEND(google-explicit-constructor)

#if DTRAIN_DEFINITIONS

DTRAIN_DEFINED DTRAIN_NOT_INLINED void require_reduction(ElementMeaning meaning, ReduceOp op) {
  if (meaning == ElementMeaning::bytes) {
    throw_error(Errc::unsupported,
                "bytes of structs or other elements that are only moved were given to a reduction by {}; reduce their "
                "numbers, or give a function in place of the operation",
                {name(op)});
  }
  const bool adds = op == ReduceOp::sum || op == ReduceOp::average;
  if (meaning == ElementMeaning::flag && adds) {
    throw_error(Errc::unsupported,
                "flags (elements of type bool) were given to a reduction by {}, which may give other values than 0 and "
                "1; reduce them by max, which is true if any is, or by min, or copy them to integers",
                {name(op)});
  }
  if (meaning == ElementMeaning::part_of_complex && !adds) {
    throw_error(Errc::unsupported, "complex numbers cannot be reduced by {}; use sum or average", {name(op)});
  }
}

DTRAIN_DEFINED DTRAIN_NOT_INLINED void require_equal_units(std::uint32_t input, std::uint32_t output) {
  if (input != output) {
    throw_error(
        Errc::invalid_argument,
        "a collective with counts has an input of elements of {} parts each and an output of elements of {} parts; "
        "give both the same type",
        {input, output});
  }
}

#endif  // DTRAIN_DEFINITIONS

}  // namespace DTRAIN_NAMESPACE::group
