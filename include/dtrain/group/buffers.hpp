#pragma once
/// @file
/// Buffer arguments of a process group's collectives: WriteBuffer, ReadBuffer, and BufferOf for a library's tensors.
/// DeviceBounceBuffer of a GroupState: copies host memory through the device for a device-only backend.

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>
#include <utility>

#include "dtrain/core/config.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/core/types/buffer_view.hpp"
#include "dtrain/core/types/reduce_op.hpp"
#include "dtrain/stream/cuda/check.hpp"
#include "dtrain/stream/cuda/device_buffer.hpp"
#include "dtrain/stream/cuda/pinned_buffer.hpp"
#include "dtrain/stream/cuda/stream_ref.hpp"

namespace DTRAIN_NAMESPACE::group {

/// An Element that collectives reduce: all but the 8-bit floats.
/// @ingroup collectives
template <class T>
concept ReducedElement = Element<T> && !is_float8(dtype_of<T>::value);

/// The element type, perhaps const, of contiguous memory.
template <class Values>
using ElementOf = typename decltype(std::span(std::declval<Values&>()))::element_type;

/// Contiguous host memory of ReducedElements: std::span of any extent, std::vector, std::array, T[n].
/// @ingroup collectives
template <class Values>
concept HostValues = ReducedElement<std::remove_cv_t<ElementOf<Values>>>;

/// HostValues whose elements are not const.
/// @ingroup collectives
template <class Values>
concept WritableHostValues = HostValues<Values> && !std::is_const_v<ElementOf<Values>>;

namespace detail {

/// An integer type without its own DType (std::int8_t, unsigned). Collectives move it as the type of the same size
/// (`moved_as`).
template <class T>
concept OtherInteger = !Element<T> && (std::is_same_v<T, std::byte> ||
                                       (std::is_integral_v<T> && (sizeof(T) == 1 || sizeof(T) == 4 || sizeof(T) == 8)));

/// Elements that collectives move and do not reduce.
template <class T>
concept TransferOnly = OtherInteger<T> ||(Element<T> && !ReducedElement<T>);

template <class Values>
concept TransferOnlyValues = TransferOnly<std::remove_cv_t<ElementOf<Values>>>;
template <class Values>
concept WritableTransferOnlyValues = TransferOnlyValues<Values> && !std::is_const_v<ElementOf<Values>>;

/// Fails to compile, with the reason.
template <class Values>
constexpr bool refuse_reduction() noexcept {
  using T = std::remove_cv_t<ElementOf<Values>>;
  static_assert(Element<T>,
                "dtrain: elements of this integer type can be moved (broadcast, all_gather, send, recv), and not "
                "reduced: copy them to std::int32_t or std::int64_t, or for sums that wrap to std::uint8_t "
                "(the concept dtrain::Element, in dtrain/core/types/dtype.hpp)");
  static_assert(!Element<T> || ReducedElement<T>,
                "dtrain: floats of 8 bits can be moved (broadcast, all_gather, send, recv), and not reduced, because "
                "they have too few digits for a sum or an average: copy them to float, dtrain::float16 or "
                "dtrain::bfloat16");
  return false;
}

template <class Values>
inline constexpr bool is_span = false;
template <class T, std::size_t Extent>
inline constexpr bool is_span<std::span<T, Extent>> = true;

/// The DType as which collectives move elements of type T: its own, or that of the integer of the same size.
template <class T>
constexpr DType moved_as() noexcept {
  if constexpr (Element<T>) {
    return dtype_of<T>::value;
  } else {
    return sizeof(T) == 1 ? DType::u8 : sizeof(T) == 4 ? DType::i32 : DType::i64;
  }
}

/// View of host memory, writable unless T is const.
template <class T, std::size_t Extent>
auto view_of(std::span<T, Extent> values) noexcept {
  using View = std::conditional_t<std::is_const_v<T>, ConstBufferView, BufferView>;
  using Byte = std::conditional_t<std::is_const_v<T>, const std::byte, std::byte>;
  return View{reinterpret_cast<Byte*>(values.data()), values.size(), moved_as<std::remove_const_t<T>>(), {}};
}

}  // namespace detail

/// Meaning of a buffer's elements beyond their DType. It decides which reductions are right.
enum class ElementMeaning : std::uint8_t {
  number,           ///< every reduction
  flag,             ///< 0 or 1: not sum and average, which give other values
  part_of_complex,  ///< real and imaginary parts in turn: sum and average only, which treat the parts apart
};

/// @throws Error (unsupported) for a reduction whose results do not have the meaning
void require_reduction(ElementMeaning meaning, ReduceOp op);

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

/// Output of a collective: an lvalue container, or a span. Lifetime: the memory outlives the work.
/// @ingroup collectives
struct WriteBuffer : BufferView {
  constexpr WriteBuffer(const BufferView& view) noexcept : BufferView(view) {}

  template <ReducedElement T, std::size_t Extent>
  WriteBuffer(std::span<T, Extent> values) noexcept : BufferView(detail::view_of(values)) {}

  template <WritableHostValues Values>
  requires(!detail::is_span<std::remove_const_t<Values>>) WriteBuffer(Values& values)
  noexcept : BufferView(detail::view_of(std::span(values))) {}

  /// @throws as BufferOf<T>::view
  template <LibraryTensor T>
  WriteBuffer(const T& tensor) : BufferView(BufferOf<T>::view(tensor)), meaning(BufferOf<T>::meaning(tensor)) {
    BufferOf<T>::will_write(tensor);
  }
  template <LibraryTensor T>
  WriteBuffer(const T&&) = delete;  // the result of `tensor.to(type)` would be lost

  template <detail::WritableTransferOnlyValues Values>
  WriteBuffer(Values&&) noexcept {
    static_cast<void>(detail::refuse_reduction<Values>());
  }

  ElementMeaning meaning = ElementMeaning::number;
};

/// Input of a collective. Lifetime: the memory outlives the work.
/// @ingroup collectives
struct ReadBuffer : ConstBufferView {
  constexpr ReadBuffer(const ConstBufferView& view) noexcept : ConstBufferView(view) {}
  constexpr ReadBuffer(const BufferView& view) noexcept : ConstBufferView(view) {}

  template <HostValues Values>
  ReadBuffer(const Values& values) noexcept : ConstBufferView(detail::view_of(std::span(values))) {}

  /// @throws as BufferOf<T>::view
  template <LibraryTensor T>
  ReadBuffer(const T& tensor) : ConstBufferView(BufferOf<T>::view(tensor)), meaning(BufferOf<T>::meaning(tensor)) {}

  template <detail::TransferOnlyValues Values>
  ReadBuffer(const Values&) noexcept {
    static_cast<void>(detail::refuse_reduction<Values>());
  }

  ElementMeaning meaning = ElementMeaning::number;
};

/// Output of a collective that does not reduce: also 8-bit floats, integers of 1, 4 or 8 bytes, and std::byte. (Its
/// constructors repeat the base's: clang 14 hides inherited constructors that differ in their constraints only.)
/// @ingroup collectives
struct MovedWriteBuffer : WriteBuffer {
  constexpr MovedWriteBuffer(const BufferView& view) noexcept : WriteBuffer(view) {}

  template <class T, std::size_t Extent>
  requires(Element<T> || detail::TransferOnly<T>) MovedWriteBuffer(std::span<T, Extent> values)
  noexcept : WriteBuffer(detail::view_of(values)) {}

  template <class Values>
  requires(!detail::is_span<std::remove_const_t<Values>> &&
           (WritableHostValues<Values> || detail::WritableTransferOnlyValues<Values>)) MovedWriteBuffer(Values& values)
  noexcept : WriteBuffer(detail::view_of(std::span(values))) {}

  template <LibraryTensor T>
  MovedWriteBuffer(const T& tensor) : WriteBuffer(tensor) {}
  template <LibraryTensor T>
  MovedWriteBuffer(const T&&) = delete;
};

/// Input of a collective that does not reduce.
/// @ingroup collectives
struct MovedReadBuffer : ReadBuffer {
  constexpr MovedReadBuffer(const ConstBufferView& view) noexcept : ReadBuffer(view) {}
  constexpr MovedReadBuffer(const BufferView& view) noexcept : ReadBuffer(view) {}

  template <class Values>
  requires(HostValues<Values> || detail::TransferOnlyValues<Values>) MovedReadBuffer(const Values& values)
  noexcept : ReadBuffer(detail::view_of(std::span(values))) {}

  template <LibraryTensor T>
  MovedReadBuffer(const T& tensor) : ReadBuffer(tensor) {}
};

namespace detail {

/// Whether an argument of type `Values&&` is a temporary that owns its memory.
template <class Values>
inline constexpr bool is_temporary_owner =
    !std::is_lvalue_reference_v<Values> && !std::ranges::enable_borrowed_range<std::remove_cv_t<Values>> &&
    (HostValues<Values> || TransferOnlyValues<Values> || LibraryTensor<std::remove_cv_t<Values>>);

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

/// Backends of host memory need no bounce buffer.
template <class Stream>
class DeviceBounceBuffer {
 public:
  static constexpr bool is_needed = false;
};

#if DTRAIN_WITH_CUDA

/// With a backend of device memory, a value on the host (a loss, a count) is copied to the device and back in chunks.
/// The memory is allocated with the group, because no memory may be allocated while collectives run. Threads: one.
template <>
class DeviceBounceBuffer<stream::cuda::StreamRef> {
 public:
  static constexpr bool is_needed = true;

  /// Allocates on the thread's current device. @throws Error (cuda)
  DeviceBounceBuffer() : pinned_(chunk_bytes), device_(chunk_bytes) {}

  /// Calls `operate(chunk)`, at least once, to enqueue an in-place operation on device memory. Then `output` has the
  /// results of all chunks. Blocking: by `wait()`, which returns once the stream has completed the chunk, or throws.
  template <class Operate, class Wait>
  void copy_through(const ConstBufferView& input, const BufferView& output, stream::cuda::StreamRef stream,
                    Operate operate, Wait wait) const {
    using stream::cuda::check;
    const std::size_t most = chunk_bytes / size_bytes(input.dtype);
    std::size_t begin = 0;
    do {
      const std::size_t count = std::min(most, input.count - begin);
      const std::size_t offset = begin * size_bytes(input.dtype);
      const BufferView chunk{device_.data(), count, input.dtype, stream.device()};
      if (count != 0) {
        std::memcpy(pinned_.data(), input.data + offset, chunk.bytes());
        check(cudaMemcpyAsync(chunk.data, pinned_.data(), chunk.bytes(), cudaMemcpyHostToDevice, stream.native()),
              "cudaMemcpyAsync");
      }
      operate(chunk);
      if (count != 0) {
        check(cudaMemcpyAsync(pinned_.data(), chunk.data, chunk.bytes(), cudaMemcpyDeviceToHost, stream.native()),
              "cudaMemcpyAsync");
      }
      wait();
      if (count != 0) {
        std::memcpy(output.data + offset, pinned_.data(), chunk.bytes());
      }
      begin += count;
    } while (begin < input.count);
  }

 private:
  static constexpr std::size_t chunk_bytes = std::size_t{256} << 10;

  stream::cuda::PinnedBuffer pinned_;
  stream::cuda::DeviceBuffer device_;
};

#endif  // DTRAIN_WITH_CUDA

#if DTRAIN_DEFINITIONS

DTRAIN_DEFINED DTRAIN_NOT_INLINED void require_reduction(ElementMeaning meaning, ReduceOp op) {
  const bool adds = op == ReduceOp::sum || op == ReduceOp::average;
  if (meaning == ElementMeaning::flag && adds) {
    throw_error(Errc::unsupported,
                "flags (elements of type Bool) were given to a reduction by {}, which may give other values than 0 and "
                "1; reduce them by max, which is true if any is, or by min, or copy them to integers",
                {name(op)});
  }
  if (meaning == ElementMeaning::part_of_complex && !adds) {
    throw_error(Errc::unsupported, "complex numbers cannot be reduced by {}; use sum or average", {name(op)});
  }
}

#endif  // DTRAIN_DEFINITIONS

}  // namespace DTRAIN_NAMESPACE::group
