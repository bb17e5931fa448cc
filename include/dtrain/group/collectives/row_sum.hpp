#pragma once
/// @file
/// RowSum: the reduced rows of a table of which each rank has changed some. RowCollectives: all_reduce_rows.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <vector>

#include "dtrain/backend/communicator.hpp"
#include "dtrain/core/config.hpp"
#include "dtrain/core/types/buffer_view.hpp"
#include "dtrain/core/types/dtype.hpp"
#include "dtrain/core/types/reduce_op.hpp"
#include "dtrain/group/collectives/buffers.hpp"
#include "dtrain/group/collectives/device_bounce_buffer.hpp"

namespace DTRAIN_NAMESPACE::group {

namespace detail {

/// The number of a rank's rows for another rank, and their width, which all ranks compare.
struct RowHeader {
  std::uint64_t count;
  std::uint64_t width;
};

/// Rows with their ids, one block after the other for each rank.
struct RowBlocks {
  std::vector<std::int64_t> ids;
  std::vector<std::byte> rows;
  std::vector<std::size_t> counts;    ///< rows of each rank's block
  std::vector<std::size_t> elements;  ///< the same times the width

  void resize(std::size_t row_bytes, std::size_t width);
};

/// The rank that reduces an id's rows. A hash: ids are often sorted by frequency, so ranges of ids would give one rank
/// most of the work.
constexpr std::size_t owner_of(std::int64_t id, std::size_t ranks) noexcept {
  return static_cast<std::size_t>((static_cast<std::uint64_t>(id) * 0x9E3779B97F4A7C15U) >> 33U) % ranks;
}

/// The steps of all_reduce_rows that no rank waits in.
class RowTables {
 public:
  RowTables(std::size_t width, DType dtype) noexcept
      : width_(width), row_bytes_(width * size_bytes(dtype)), dtype_(dtype) {}

  /// `sent` gets this rank's rows by owner and id, each id once. @throws Error (invalid_argument) for a negative id, or
  /// if there are not `width` elements for each id
  void pack(std::span<const std::int64_t> ids, const std::byte* rows, std::size_t elements, std::size_t ranks,
            ReduceOp op);
  /// @throws Error (protocol) if a rank has another width
  void expect(std::span<const RowHeader> headers);
  /// `owned` gets the reduction of the received rows of each id, in the order of the ranks.
  void merge(std::size_t ranks, ReduceOp op);

  BufferView view(RowBlocks& blocks) const noexcept {
    return {blocks.rows.data(), blocks.ids.size() * width_, dtype_, {}};
  }
  std::size_t width() const noexcept { return width_; }
  std::size_t row_bytes() const noexcept { return row_bytes_; }

  RowBlocks sent, received, owned, result;
  std::vector<RowHeader> headers;

 private:
  void order_by_id(std::span<const std::int64_t> ids);
  void prefetch(const std::byte* row) const noexcept {
    for (std::size_t at = 0; at < std::min<std::size_t>(row_bytes_, 1024); at += 64)
      __builtin_prefetch(row + at);
  }
  /// Reductions of the rows of one id.
  struct Fold;
  /// Folds sources_. If they are more than one pass takes, the result of a pass is the first source of the next.
  void fold(const Fold& by, std::byte* target);

  std::size_t width_;
  std::size_t row_bytes_;
  DType dtype_;
  std::vector<std::uint32_t> order_, spare_;
  std::vector<const std::byte*> sources_;  ///< the rows of one id
};

}  // namespace detail

/// Result and scratch memory of all_reduce_rows. Keep it between calls: fresh memory costs as much as the exchange.
/// @ingroup collectives
template <ReducedElement T>
class RowSum {
 public:
  /// @param width elements of a row, the same on every rank
  explicit RowSum(std::size_t width) noexcept : tables_(width, dtype_of<T>::value) {}

  /// The ids of the last result, each once, in an order that all ranks share. Lifetime: until the next call.
  std::span<const std::int64_t> ids() const noexcept { return tables_.result.ids; }
  /// Their rows, one after the other. Lifetime: until the next call.
  std::span<const T> rows() const noexcept {
    return {reinterpret_cast<const T*>(tables_.result.rows.data()), ids().size() * tables_.width()};
  }
  /// The row of ids()[i].
  std::span<const T> row(std::size_t i) const noexcept { return rows().subspan(i * tables_.width(), tables_.width()); }

 private:
  template <class, class>
  friend class RowCollectives;
  detail::RowTables tables_;
};

/// The collective of sparse rows of a ProcessGroup, whose base class it is.
/// @ingroup collectives
template <class Group, class State>
class RowCollectives {
 public:
  using Communicator = typename State::Communicator;

  /// Blocking, on host memory. `result` gets the union of all ranks' ids, and for each id the reduction of its rows:
  /// `group.all_reduce_rows(ids, gradients, sum)`, then sum.row(i) belongs to row sum.ids()[i] of the table.
  /// - `rows` has result's width of elements for each id. An id that a rank gives several times is first reduced there
  ///   (an average is added there). An empty list is legal.
  /// - average divides by the number of ranks; min, max and product are those of the ranks that have the row.
  /// - The bits are the same on all ranks, and those of reduce() on the whole table but for the sign of zeros
  ///   and the bits of a NaN.
  /// Memory: at most this rank's rows, those that it reduces (about its share of all), and the union.
  /// @throws Error (invalid_argument), on that rank, for a negative id or a wrong length; (protocol) on all for unequal
  /// widths; the job's first cause
  template <ReducedElement T>
  void all_reduce_rows(std::span<const std::int64_t> ids, std::span<const std::type_identity_t<T>> rows,
                       RowSum<T>& result, ReduceOp op = ReduceOp::sum) const
      requires(backend::CanExchangeBlocks<Communicator> &&
               !DeviceBounceBuffer<typename Communicator::Stream>::is_needed) {
    exchange(ids, reinterpret_cast<const std::byte*>(rows.data()), rows.size(), result.tables_, op);
  }

 private:
  void exchange(std::span<const std::int64_t> ids, const std::byte* rows, std::size_t elements,
                detail::RowTables& tables, ReduceOp op) const {
    const Group& group = static_cast<const Group&>(*this);
    const auto ranks = static_cast<std::size_t>(group.world_size());
    tables.pack(ids, rows, elements, ranks, op);
    std::vector<detail::RowHeader> headers(ranks);
    group.all_to_all(tables.headers, headers);
    tables.expect(headers);
    detail::RowBlocks &sent = tables.sent, &received = tables.received;
    group.all_to_all_v(sent.ids, sent.counts, received.ids, received.counts);
    group.all_to_all_v(tables.view(sent), sent.elements, tables.view(received), received.elements);
    tables.merge(ranks, op);
    detail::RowBlocks& result = tables.result;
    result.counts = group.all_gather(tables.owned.ids.size());
    result.resize(tables.row_bytes(), tables.width());
    group.all_gather_v(tables.owned.ids, result.ids, result.counts);
    group.all_gather_v(tables.view(tables.owned), tables.view(result), result.elements);
  }
};

}  // namespace DTRAIN_NAMESPACE::group

#if DTRAIN_DEFINITIONS

#include <array>
#include <cstring>
#include <limits>
#include <numeric>

#include "dtrain/core/error.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/kernels/reduction.hpp"

namespace DTRAIN_NAMESPACE::group::detail {

DTRAIN_DEFINED void RowBlocks::resize(std::size_t row_bytes, std::size_t width) {
  const std::size_t all = std::accumulate(counts.begin(), counts.end(), std::size_t{0});
  ids.resize(all);
  rows.resize(all * row_bytes);
  elements.resize(counts.size());
  std::transform(counts.begin(), counts.end(), elements.begin(), [width](std::size_t count) { return count * width; });
}

/// `order_` gets the positions of the ids by id, and of equal ids by position: a radix sort of the digits that the ids
/// have.
DTRAIN_DEFINED void RowTables::order_by_id(std::span<const std::int64_t> ids) {
  constexpr unsigned digit_bits = 11;
  order_.resize(ids.size());
  spare_.resize(ids.size());
  std::iota(order_.begin(), order_.end(), 0U);
  if (std::is_sorted(ids.begin(), ids.end())) return;
  const std::uint64_t greatest = static_cast<std::uint64_t>(*std::max_element(ids.begin(), ids.end()));
  for (unsigned shift = 0; shift < 64 && (greatest >> shift) != 0; shift += digit_bits) {
    const auto digit = [&](std::uint32_t position) {
      return (static_cast<std::uint64_t>(ids[position]) >> shift) % (1U << digit_bits);
    };
    std::array<std::uint32_t, (1U << digit_bits) + 1> begins{};
    for (const std::uint32_t position : order_)
      ++begins[digit(position) + 1];
    std::partial_sum(begins.begin(), begins.end(), begins.begin());
    for (const std::uint32_t position : order_)
      spare_[begins[digit(position)]++] = position;
    order_.swap(spare_);
  }
}

struct RowTables::Fold {
  Fold(DType dtype, ReduceOp op, std::size_t divisor) noexcept
      : part(kernels::Reduction::of(dtype, op == ReduceOp::average ? ReduceOp::sum : op)),
        last(kernels::Reduction::of(dtype, op).over(divisor)),
        copies(op != ReduceOp::average) {}

  kernels::Reduction part;  ///< all passes but the last
  kernels::Reduction last;
  bool copies;  ///< one source is copied
};

DTRAIN_DEFINED void RowTables::fold(const Fold& by, std::byte* target) {
  if (sources_.size() == 1 && by.copies) {
    if (row_bytes_ != 0) std::memcpy(target, sources_.front(), row_bytes_);
    return;
  }
  std::span<const std::byte*> sources(sources_);
  constexpr std::size_t most = kernels::Reduction::max_sources;
  while (sources.size() > most) {
    by.part(sources.first(most), std::span(&target, 1), width_);
    sources = sources.subspan(most - 1);
    sources.front() = target;
  }
  by.last(sources, std::span(&target, 1), width_);
}

DTRAIN_DEFINED void RowTables::pack(std::span<const std::int64_t> ids, const std::byte* rows, std::size_t elements,
                                    std::size_t ranks, ReduceOp op) {
  if (width_ == 0 ? elements != 0 : elements % width_ != 0 || elements / width_ != ids.size()) {
    throw_error(Errc::invalid_argument,
                "all_reduce_rows with {} ids, rows of {} elements, and {} elements in all; give one row for each id",
                {ids.size(), width_, elements});
  }
  if (ids.size() > std::numeric_limits<std::uint32_t>::max()) {
    throw_error(Errc::invalid_argument, "all_reduce_rows with {} ids; make several calls of at most 2^32 - 1",
                {ids.size()});
  }
  const auto negative = std::find_if(ids.begin(), ids.end(), [](std::int64_t id) { return id < 0; });
  if (negative != ids.end()) {
    throw_error(Errc::invalid_argument, "all_reduce_rows: id {} of the list is {}; ids are 0 or more",
                {negative - ids.begin(), *negative});
  }
  order_by_id(ids);
  sent.counts.assign(ranks, 0);
  for (std::size_t i = 0; i < order_.size(); ++i) {
    if (i == 0 || ids[order_[i]] != ids[order_[i - 1]]) ++sent.counts[owner_of(ids[order_[i]], ranks)];
  }
  sent.resize(row_bytes_, width_);
  std::vector<std::size_t> next(ranks, 0);
  std::partial_sum(sent.counts.begin(), sent.counts.end() - 1, next.begin() + 1);
  const Fold own(dtype_, op == ReduceOp::average ? ReduceOp::sum : op, 1);
  constexpr std::size_t ahead = 8;  // rows in the order of their ids lie anywhere
  for (std::size_t i = 0; i < order_.size();) {
    if (i + ahead < order_.size()) prefetch(rows + order_[i + ahead] * row_bytes_);
    const std::int64_t id = ids[order_[i]];
    sources_.clear();
    for (; i < order_.size() && ids[order_[i]] == id; ++i)
      sources_.push_back(rows + order_[i] * row_bytes_);
    const std::size_t place = next[owner_of(id, ranks)]++;
    sent.ids[place] = id;
    fold(own, sent.rows.data() + place * row_bytes_);
  }
  headers.resize(ranks);
  std::transform(sent.counts.begin(), sent.counts.end(), headers.begin(), [this](std::size_t count) {
    return RowHeader{count, width_};
  });
}

DTRAIN_DEFINED void RowTables::expect(std::span<const RowHeader> of_ranks) {
  received.counts.resize(of_ranks.size());
  for (std::size_t rank = 0; rank < of_ranks.size(); ++rank) {
    if (of_ranks[rank].width != width_) {
      throw_error(
          Errc::protocol,
          "all_reduce_rows: rank {} of the group has rows of {} elements, this rank rows of {}; give RowSum the "
          "same width on every rank",
          {rank, of_ranks[rank].width, width_});
    }
    received.counts[rank] = static_cast<std::size_t>(of_ranks[rank].count);
  }
  received.resize(row_bytes_, width_);
}

/// Merges the blocks, which are sorted by id. The next id is the least at any block's front: ranks are few.
DTRAIN_DEFINED void RowTables::merge(std::size_t ranks, ReduceOp op) {
  constexpr std::int64_t none = std::numeric_limits<std::int64_t>::max();
  const Fold by(dtype_, op, ranks);
  std::vector<std::size_t> at(ranks, 0), ends(ranks);
  std::partial_sum(received.counts.begin(), received.counts.end(), ends.begin());
  for (std::size_t rank = 1; rank < ranks; ++rank)
    at[rank] = ends[rank - 1];
  owned.ids.clear();
  owned.rows.resize(received.rows.size());  // at most: without a shared id
  for (;;) {
    std::int64_t least = none;
    bool is_over = true;
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      if (at[rank] < ends[rank]) {
        least = std::min(least, received.ids[at[rank]]);
        is_over = false;
      }
    }
    if (is_over) break;
    sources_.clear();
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      if (at[rank] < ends[rank] && received.ids[at[rank]] == least) {
        sources_.push_back(received.rows.data() + at[rank]++ * row_bytes_);
      }
    }
    fold(by, owned.rows.data() + owned.ids.size() * row_bytes_);
    owned.ids.push_back(least);
  }
}

}  // namespace DTRAIN_NAMESPACE::group::detail

#endif  // DTRAIN_DEFINITIONS
