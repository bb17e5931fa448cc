#pragma once
/// @file
/// OwnReductions: collectives whose reduction is the program's own function.

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "dtrain/backend/communicator.hpp"
#include "dtrain/backend/exchange/block_exchange.hpp"
#include "dtrain/core/config.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/types/buffer_view.hpp"
#include "dtrain/group/collectives/buffers.hpp"
#include "dtrain/group/collectives/counts.hpp"
#include "dtrain/group/collectives/device_bounce_buffer.hpp"
#include "dtrain/group/collectives/scratch_memory.hpp"
#include "dtrain/group/collectives/value_collectives.hpp"
#include "dtrain/group/collectives/work.hpp"

namespace DTRAIN_NAMESPACE::group {

/// `T f(const T& earlier, const T& later)`: reduces two elements, of a lower and a higher rank.
/// @ingroup collectives
template <class F, class T>
concept ElementReducer = std::is_invocable_r_v<T, F&, const T&, const T&>;

/// `void f(std::span<T> into, std::span<const T> from)`: into[i] = into[i] op from[i], of lower and higher ranks.
/// @ingroup collectives
template <class F, class T>
concept SpanReducer = std::is_invocable_r_v<void, F&, std::span<T>, std::span<const T>>;

/// The element form is tried first: asking whether a generic lambda takes spans would compile its body for them.
/// @ingroup collectives
template <class F, class T>
concept ReducerOf = ElementReducer<F, T> || SpanReducer<F, T>;

/// The type of the elements of an argument of type `Values&&`.
template <class Values>
using ValueOf = std::remove_cv_t<ElementOf<std::remove_reference_t<Values>>>;

namespace detail {

/// A program's reduction, without its types. Lifetime: the function outlives it.
struct Fold {
  void* function;
  void (*call)(void* function, std::byte* into, const std::byte* from, std::size_t elements);
  std::size_t element_bytes;
  bool needs_whole_blocks;  ///< bytes of elements whose size dtrain does not know

  /// Folds the blocks that lie `stride` bytes apart from `blocks`, in order, into the first.
  void operator()(std::byte* blocks, std::size_t stride, std::size_t ranks, std::size_t elements) const {
    for (std::size_t rank = 1; rank < ranks && elements != 0; ++rank) {
      call(function, blocks, blocks + rank * stride, elements);
    }
  }
};

/// Abilities that own reductions need; fewer for a backend of device memory, where ranks gather to the host.
template <class C>
concept CanMoveBlocks = backend::CanAllGather<C> &&
    (DeviceBounceBuffer<typename C::Stream>::is_needed || backend::CanExchangeBlocks<C>);

template <class T>
inline constexpr bool is_byte =
    std::is_same_v<T, char> || std::is_same_v<T, unsigned char> || std::is_same_v<T, std::byte>;

template <class T, class F>
Fold fold_of(F& f) noexcept {
  static_assert(MovedValue<T>,
                "dtrain: a reduction of one's own moves its values as bytes, and these are not trivially copyable "
                "(std::pair and std::tuple are not), or are pointers or views: give a trivially copyable struct");
  static_assert(!MovedValue<T> || alignof(T) <= ScratchMemory::alignment,
                "dtrain: the type is aligned to more than 64 bytes");
  // A bit_cast, since f may be a function.
  Fold fold{std::bit_cast<void*>(std::addressof(f)), nullptr, sizeof(T), false};
  if constexpr (!MovedValue<T>) {
    return fold;
  } else if constexpr (ElementReducer<F, T>) {
    fold.call = [](void* function, std::byte* into, const std::byte* from, std::size_t elements) {
      T* const results = reinterpret_cast<T*>(into);
      const T* const others = reinterpret_cast<const T*>(from);
      for (std::size_t i = 0; i < elements; ++i) {
        const T result = std::invoke(*std::bit_cast<F*>(function), std::as_const(results[i]), others[i]);
        std::construct_at(results + i, result);
      }
    };
  } else {
    fold.needs_whole_blocks = is_byte<T>;
    fold.call = [](void* function, std::byte* into, const std::byte* from, std::size_t elements) {
      std::invoke(*std::bit_cast<F*>(function), std::span(reinterpret_cast<T*>(into), elements),
                  std::span(reinterpret_cast<const T*>(from), elements));
    };
  }
  return fold;
}

}  // namespace detail

/// Collectives of a ProcessGroup with a reduction of one's own: a function in place of a ReduceOp. All are blocking,
/// and on host memory with every backend. Errors and threads as Collectives, whose base class it is.
///
/// Result: `f(f(x0, x1), x2)...`, from the left in the order of the ranks: f need be neither associative nor
/// commutative. One rank, or ranks of one host, compute an element: the bits are equal on all ranks. f is called on the
/// calling thread, once less for each element than there are ranks; on one rank it is not called. It makes no call of
/// the group. An exception of f leaves the call on that rank, whose failure ends the job as any other.
///
/// Elements: trivially copyable, and no pointers. The span form gets any part of a block; with char, unsigned char or
/// std::byte, as libraries have it that know their elements' size at run time, reduce and reduce_scatter_v give it
/// whole blocks. With a backend of device memory: at most 256 KiB over all ranks. @throws Error (unsupported) beyond
/// that
/// @ingroup collectives
template <class Group, class State>
class OwnReductions {
 public:
  using Communicator = typename State::Communicator;

  /// In place: every rank's `values` get the reduction.
  template <class Values, ReducerOf<ValueOf<Values>> F>
  void all_reduce(Values&& values, F&& f) const requires detail::CanMoveBlocks<Communicator> {
    using T = ValueOf<Values>;
    static_assert(ElementReducer<F, T> || !detail::is_byte<T>,
                  "dtrain: all_reduce may cut bytes within an element: give elements, or whole blocks by "
                  "reduce_scatter_v");
    all_reduce_with(writable<T>(values), detail::fold_of<T>(f));
  }

  /// `best = group.all_reduce(best, [](const Split& a, const Split& b) { return b.gain > a.gain ? b : a; });`
  template <detail::SingleValue T, ElementReducer<T> F>
  [[nodiscard]] T all_reduce(const T& value, F&& f) const requires detail::CanMoveBlocks<Communicator> {
    T result = value;
    all_reduce(std::span(std::addressof(result), 1), f);
    return result;
  }

  /// In place at rank `root`; the values of other ranks stay.
  template <class Values, ReducerOf<ValueOf<Values>> F>
  void reduce(Values&& values, int root, F&& f) const requires detail::CanMoveBlocks<Communicator> {
    using T = ValueOf<Values>;
    reduce_with(writable<T>(values), root, detail::fold_of<T>(f));
  }

  /// Rank r's `output` gets block r of the reduction of every rank's `input`. `output` is the memory of that block, or
  /// disjoint. @param counts of each rank's output, the same on every rank
  template <class Input, class Output, ReducerOf<ValueOf<Output>> F>
  void reduce_scatter_v(const Input& input, Output&& output, Counts counts,
                        F&& f) const requires detail::CanMoveBlocks<Communicator> {
    using T = ValueOf<Output>;
    static_assert(std::is_same_v<T, ValueOf<const Input>>, "dtrain: the input and the output have one type");
    reduce_scatter_with(as_bytes(std::span(input)), writable<T>(output), counts.in_units_of(sizeof(T)),
                        detail::fold_of<T>(f));
  }

 private:
  static constexpr std::size_t gathered_bytes = std::size_t{32} << 10;  ///< up to it, every rank folds everything
  static constexpr std::size_t device_bytes = std::size_t{256} << 10;
  static constexpr bool is_on_device = DeviceBounceBuffer<typename Communicator::Stream>::is_needed;

  const Group& self() const noexcept { return static_cast<const Group&>(*this); }
  std::size_t ranks() const noexcept { return static_cast<std::size_t>(self().world_size()); }
  std::size_t rank() const noexcept { return static_cast<std::size_t>(self().rank()); }
  backend::RankPlace place() const noexcept { return {self().rank(), self().world_size()}; }

  template <class T, std::size_t Extent>
  static ConstBufferView as_bytes(std::span<T, Extent> values) noexcept {
    return {reinterpret_cast<const std::byte*>(values.data()), values.size_bytes(), DType::u8};
  }
  template <class T, class Values>
  static BufferView writable(Values& values) noexcept {
    static_assert(!std::is_const_v<ElementOf<Values>>, "dtrain: the values are const: give others for the result");
    const std::span<T> span(values);
    return {reinterpret_cast<std::byte*>(span.data()), span.size_bytes(), DType::u8, {}};
  }

  /// Every rank's `values`, one after the other.
  std::byte* gather(const ConstBufferView& values) const {
    std::byte* const all = self().state_->scratch_memory().of(ranks() * values.count);
    self().all_gather(values, BufferView{all, ranks() * values.count, DType::u8, {}});
    return all;
  }

  /// gather() and the fold of the blocks at `offset` into `output`.
  void gather_and_fold(const ConstBufferView& values, std::size_t offset, const BufferView& output,
                       const detail::Fold& fold) const {
    std::byte* const first = gather(values) + offset;
    fold(first, values.count, ranks(), output.count / fold.element_bytes);
    if (output.count != 0) std::memcpy(output.data, first, output.count);
  }

  void require_room(const ConstBufferView& values) const {
    if (values.count > device_bytes / ranks()) {
      throw_error(Errc::unsupported,
                  "a reduction of one's own of {} bytes on {} ranks; with a backend of device memory it runs on the "
                  "host, on at most {} bytes of all ranks together: make a group of backend::Gloo for more",
                  {values.count, ranks(), device_bytes});
    }
  }

  void all_reduce_with(const BufferView& values, const detail::Fold& fold) const {
    if (ranks() == 1) return;
    if constexpr (is_on_device) {
      require_room(values);
      if (rank() == 0) {
        gather_and_fold(values, 0, values, fold);
      } else {
        gather(values);
      }
      self().broadcast(values, 0);
    } else if (values.count <= gathered_bytes / ranks() && self().node_count() == 1) {
      gather_and_fold(values, 0, values, fold);
    } else {
      backend::BlockExchange blocks = exchange_of(backend::OperationKind::all_to_all_v, 0);
      std::vector<std::size_t> counts(ranks());
      for (std::size_t r = 0; r < ranks(); ++r) {
        blocks.sent[r] = backend::piece_of(values.count / fold.element_bytes, r, ranks());
        counts[r] = blocks.sent[r].count * fold.element_bytes;
      }
      const BufferView own{
          values.data + blocks.sent[rank()].offset * fold.element_bytes, counts[rank()], DType::u8, {}};
      exchange_and_fold(blocks, values, own, fold);
      self().all_gather_v(own, values, counts);
    }
  }

  void reduce_with(const BufferView& values, int root, const detail::Fold& fold) const {
    static_cast<void>(backend::blocks_of_reduce(values, values, root, place()));  // checks the root
    if (ranks() == 1) return;
    const bool is_root = self().rank() == root;
    if constexpr (is_on_device) {
      require_room(values);
      is_root ? gather_and_fold(values, 0, values, fold) : static_cast<void>(gather(values));
    } else {
      backend::BlockExchange blocks = exchange_of(backend::OperationKind::gather_v, root);
      blocks.sent[static_cast<std::size_t>(root)] = {0, values.count / fold.element_bytes};
      exchange_and_fold(blocks, values, is_root ? values : BufferView{nullptr, 0, DType::u8, {}}, fold);
    }
  }

  void reduce_scatter_with(const ConstBufferView& input, const BufferView& output, backend::Counts counts,
                           const detail::Fold& fold) const {
    backend::BlockExchange blocks = backend::blocks_of_reduce_scatter_v(input, output, counts, place());
    backend::ReduceBlocks{blocks, input, output, ReduceOp::sum}.check(place());
    if (ranks() == 1) {
      if (output.count != 0) std::memmove(output.data, input.data, output.count);
    } else if constexpr (is_on_device) {
      require_room(input);
      gather_and_fold(input, blocks.sent[rank()].offset, output, fold);
    } else {
      blocks.kind = backend::OperationKind::all_to_all_v;
      for (backend::BlockRange& block : blocks.sent) {
        block = {block.offset / fold.element_bytes, block.count / fold.element_bytes};
      }
      exchange_and_fold(blocks, input, output, fold);
    }
  }

  backend::BlockExchange exchange_of(backend::OperationKind kind, int root) const {
    return {kind, root, 0, std::vector<backend::BlockRange>(ranks()), std::vector<backend::BlockRange>(ranks())};
  }

  /// `output`, this rank's block of the input or other memory, gets the fold of the blocks that all ranks send to this
  /// one, in rounds of so much scratch memory as a group keeps. @param blocks sent, in elements
  void exchange_and_fold(backend::BlockExchange& blocks, const ConstBufferView& input, const BufferView& output,
                         const detail::Fold& fold) const {
    const std::vector<backend::BlockRange> whole = blocks.sent;
    std::uint64_t longest = 0;
    for (const backend::BlockRange& block : whole)
      longest = std::max(longest, block.count);
    const std::uint64_t room = std::max<std::uint64_t>(ScratchMemory::kept_bytes / (fold.element_bytes * ranks()), 1);
    const std::uint64_t rounds = fold.needs_whole_blocks ? 1 : std::max<std::uint64_t>((longest + room - 1) / room, 1);
    std::byte* to = output.data;
    for (std::uint64_t round = 0; round < rounds; ++round) {
      const std::size_t elements = backend::piece_of(whole[rank()].count, round, rounds).count;
      const std::size_t bytes = elements * fold.element_bytes;
      for (std::size_t r = 0; r < ranks(); ++r) {
        const backend::BlockRange piece = backend::piece_of(whole[r].count, round, rounds);
        blocks.sent[r] = {(whole[r].offset + piece.offset) * fold.element_bytes, piece.count * fold.element_bytes};
        blocks.received[r] = {r * bytes, bytes};
      }
      std::byte* const received = self().state_->scratch_memory().of(ranks() * bytes);
      self().state_->live().enqueue(
          backend::ExchangeBlocks{blocks, input, BufferView{received, ranks() * bytes, DType::u8, {}}},
          self().stream());
      Work<State>(self().state_, self().stream()).wait();
      fold(received, bytes, ranks(), elements);
      if (bytes != 0) {
        std::memcpy(to, received, bytes);
        to += bytes;
      }
    }
  }
};

}  // namespace DTRAIN_NAMESPACE::group
