#pragma once
/// @file
/// All-reduces over messages: recursive doubling, log2(n) exchanges of a small buffer; halving-doubling (Rabenseifner),
/// reduce-scatter by recursive halving, all-gather by recursive doubling.

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <span>
#include <utility>

#include "dtrain/backend/message_passing/algorithms/blocks.hpp"
#include "dtrain/backend/message_passing/algorithms/halving_stages.hpp"
#include "dtrain/backend/message_passing/algorithms/operation_header.hpp"
#include "dtrain/backend/message_passing/endpoint.hpp"
#include "dtrain/backend/message_passing/operation_context.hpp"
#include "dtrain/core/types/dtype.hpp"
#include "dtrain/kernels/copy.hpp"
#include "dtrain/kernels/partial_reduction.hpp"

namespace DTRAIN_NAMESPACE::backend::message_passing {

/// Recursive doubling. Source: R. Thakur, R. Rabenseifner and W. Gropp, "Optimization of collective communication
/// operations in MPICH", Int. J. High Perform. Comput. Appl. 19 (2005), 4.5. Ranks beyond the largest power of two
/// first send their input to a partner, and in the end receive the result from it. Both ranks of a pair combine in the
/// same order, so their bits are equal. Requires: elements and partial results fit in a header's payload.
/// Example with 6 ranks: 4 and 5 send to 0 and 1; pairs 0-1, 2-3, then 0-2, 1-3; 0 and 1 send the result to 4 and 5.
template <Endpoint E>
Routine recursive_doubling(OperationContext<E>& context, const Buffers& buffers) {
  const int self = context.rank();
  const int whole = static_cast<int>(std::bit_floor(static_cast<unsigned>(context.size())));
  const int rest = context.size() - whole;
  const kernels::PartialReduction reduction = context.partial_reduction();
  const std::size_t count = context.operation.count;
  const std::size_t bytes = count * size_bytes(context.operation.dtype);
  const std::size_t partial_bytes = count * size_bytes(reduction.type());
  std::byte* own = context.scratch.at_least(3 * header_bytes(context));
  std::byte* const other = own + header_bytes(context);
  std::byte* spare = other + header_bytes(context);
  kernels::copy_bytes(inline_payload(own), buffers.input, bytes);
  const auto combine = [&](bool own_is_partial, bool other_is_partial, bool peer_first, bool last) {
    std::array<kernels::PartialReduction::Operand, 2> sources{
        {{inline_payload(own), own_is_partial}, {inline_payload(other), other_is_partial}}};
    if (peer_first) {
      std::swap(sources[0], sources[1]);
    }
    reduction(sources, inline_payload(spare), count, last);
    std::swap(own, spare);
  };
  if (self >= whole) {
    Routine given = exchange_headers(context, self - whole, {own, bytes}, -1, {other});
    co_await given;
    Routine got = exchange_headers(context, -1, {own}, self - whole, {other, bytes});
    co_await got;
    kernels::copy_bytes(buffers.output, inline_payload(other), bytes);
    co_return;
  }
  if (self < rest) {
    Routine got = exchange_headers(context, -1, {own}, self + whole, {other, bytes});
    co_await got;
    combine(false, false, false, false);
  }
  for (int distance = 1; distance < whole; distance *= 2) {
    const int peer = self ^ distance;
    const bool own_is_partial = distance > 1 || self < rest;
    const bool other_is_partial = distance > 1 || peer < rest;
    const HeaderMessage mine{own, own_is_partial ? partial_bytes : bytes};
    const HeaderMessage theirs{other, other_is_partial ? partial_bytes : bytes};
    Routine swap = exchange_headers(context, peer, mine, peer, theirs);
    co_await swap;
    combine(own_is_partial, other_is_partial, peer < self, distance * 2 == whole);
  }
  if (self < rest) {
    Routine given = exchange_headers(context, self + whole, {own, bytes}, -1, {other});
    co_await given;
  }
  kernels::copy_bytes(buffers.output, inline_payload(own), bytes);
}

namespace detail {

inline constexpr std::size_t max_halving_peers = HalvingStages::max_factor - 1;

/// Contributions, partial results or results, of consecutive elements.
struct HalvingRange {
  const std::byte* data = nullptr;
  std::size_t count = 0;
  std::size_t width = 0;  ///< bytes of an element
  bool is_partial = false;

  std::span<const std::byte> chunk(std::size_t index, std::size_t length) const noexcept {
    const std::size_t begin = std::min(count, index * length);
    return {data + begin * width, std::min(length, count - begin) * width};
  }
};

struct HalvingTransfer {
  int peer = 0;
  HalvingRange sent{};
  HalvingRange received{};      ///< `data` is unused
  std::byte* target = nullptr;  ///< where received results go
};

/// Exchanges with some peers at once. A step that reduces combines into `target`: the contributions of the first
/// `before_own` peers, `own`, and those of the other peers.
struct HalvingStep {
  std::array<HalvingTransfer, max_halving_peers> transfers{};
  std::size_t peers = 0;
  std::size_t longest = 0;  ///< range of any rank, in elements
  bool sends = true;
  bool receives = true;
  bool compares = true;  ///< the first messages are headers
  bool reduces = false;
  bool last = false;  ///< the combination is the result
  HalvingRange own{};
  std::byte* target = nullptr;
  std::size_t before_own = 0;
};

/// One rank's steps, and memory for them: headers, then slots for chunks in flight, then wide partial results.
template <Endpoint E>
class HalvingSchedule : public ChunkSchedule {
 public:
  static constexpr std::size_t most_peers = max_halving_peers;

  HalvingSchedule(OperationContext<E>& context, const Buffers& buffers)
      : stages_(context.size()),
        rank_(context.rank()),
        buffers_(buffers),
        count_(context.operation.count),
        combine_(context.partial_reduction()),
        element_(size_bytes(context.operation.dtype)),
        wide_(size_bytes(combine_.type())),
        in_flight_(context.channel.tuning.chunks_in_flight),
        chunks_(HalvingChunks::of(context.channel.tuning, combine_.type())),
        header_(header_bytes(context)) {
    const std::size_t longest = stages_.extra_ranks() > 0 ? count_ : stages_.longest_part(count_, 0);
    chunks_.longest = std::min(chunks_.longest, std::max<std::size_t>(1, longest));
    peers_ = static_cast<std::size_t>(stages_.factor(stages_.count() - 1)) - 1;
    const std::size_t slots = 2 * peers_ * header_;
    const std::size_t partials = slots + in_flight_ * peers_ * chunks_.longest * wide_;
    const HalvingPart kept = combine_.widens() ? kept_partials() : HalvingPart{};
    memory_ = context.scratch.at_least(partials + kept.count * wide_);
    slots_ = memory_ + slots;
    partials_ = memory_ + partials;
    first_kept_ = kept.begin;
  }

  const HalvingStages& stages() const noexcept { return stages_; }

  /// The even rank of a pair takes over the contributions of the odd one, or gives it the result.
  HalvingStep paired_step(bool gives_result) const noexcept {
    const bool even = rank_ % 2 == 0;
    HalvingStep made;
    made.peers = 1;
    made.longest = count_;
    made.sends = even == gives_result;
    made.receives = !made.sends;
    made.reduces = even && !gives_result;
    const HalvingRange all{gives_result ? buffers_.output : buffers_.input, count_, element_, false};
    made.transfers[0] = {even ? rank_ + 1 : rank_ - 1, all, all, buffers_.output};
    made.own = all;
    made.target = made.reduces ? partials_at(0) : nullptr;
    return made;
  }

  HalvingStep halving_step(std::size_t stage) const noexcept {
    HalvingStep made = step_with_group(stage);
    const int self = stages_.participant(rank_);
    const HalvingPart own = part(stage, stages_.position(self, stage));
    const bool is_partial = has_partials(rank_, stage);
    made.reduces = true;
    made.last = stage + 1 == stages_.count();
    made.own = range(own, is_partial);
    made.target = made.last ? buffers_.output + own.begin * element_ : partials_at(own.begin);
    for (std::size_t k = 0; k < made.peers; ++k) {
      HalvingTransfer& transfer = made.transfers[k];
      const bool other_is_partial = has_partials(transfer.peer, stage);
      transfer.sent = range(part(stage, stages_.position(stages_.participant(transfer.peer), stage)), is_partial);
      transfer.received = {nullptr, own.count, other_is_partial ? wide_ : element_, other_is_partial};
    }
    return made;
  }

  HalvingStep doubling_step(std::size_t stage) const noexcept {
    HalvingStep made = step_with_group(stage);
    made.compares = false;
    const HalvingPart own = part(stage, stages_.position(stages_.participant(rank_), stage));
    for (std::size_t k = 0; k < made.peers; ++k) {
      HalvingTransfer& transfer = made.transfers[k];
      const HalvingPart other = part(stage, stages_.position(stages_.participant(transfer.peer), stage));
      transfer.sent = {buffers_.output + own.begin * element_, own.count, element_, false};
      transfer.received = {nullptr, other.count, element_, false};
      transfer.target = buffers_.output + other.begin * element_;
    }
    return made;
  }

  /// The step that exchange_chunks() runs.
  HalvingStep step{};

  std::size_t peers() const noexcept { return step.peers; }
  int to(std::size_t k) const noexcept { return step.transfers[k].peer; }
  int from(std::size_t k) const noexcept { return step.transfers[k].peer; }
  bool sends() const noexcept { return step.sends; }
  bool receives() const noexcept { return step.receives; }
  bool compares() const noexcept { return step.compares; }
  bool is_inline() const noexcept { return chunks_.is_inline(step.longest, step.compares); }
  std::size_t in_flight() const noexcept { return in_flight_; }
  std::size_t messages() const noexcept { return chunks_.messages(step.longest, step.compares); }

  std::byte* sent_header(std::size_t k) const noexcept { return memory_ + 2 * k * header_; }
  std::byte* received_header(std::size_t k) const noexcept { return sent_header(k) + header_; }
  std::span<const std::byte> payload(std::size_t k) const noexcept {
    return step.transfers[k].sent.chunk(0, is_inline() ? step.transfers[k].sent.count : 0);
  }
  std::size_t received_payload(std::size_t k) const noexcept {
    return is_inline() ? step.transfers[k].received.count * step.transfers[k].received.width : 0;
  }

  std::span<const std::byte> outgoing(std::size_t m, std::size_t k) const noexcept {
    return step.transfers[k].sent.chunk(m, chunks_.longest);
  }
  std::span<std::byte> incoming(std::size_t m, std::size_t k) const noexcept {
    const HalvingTransfer& transfer = step.transfers[k];
    const std::size_t begin = std::min(transfer.received.count, m * chunks_.longest);
    const std::size_t bytes = std::min(chunks_.longest, transfer.received.count - begin) * transfer.received.width;
    return {step.reduces ? slot(m, k) : transfer.target + begin * element_, bytes};
  }

  /// Every peer's header has arrived, with its range.
  void headers_arrived() const noexcept {
    if (step.reduces) {
      const auto source_of = [&](std::size_t k) { return inline_payload(received_header(k)); };
      combine(source_of, 0, step.own.count);
    } else if (step.receives) {
      kernels::copy_bytes(step.transfers[0].target, inline_payload(received_header(0)), count_ * element_);
    }
  }

  /// Chunk `m` of every peer has arrived.
  void arrived(std::size_t m) const noexcept {
    if (step.reduces) {
      const std::size_t begin = std::min(step.own.count, m * chunks_.longest);
      const auto source_of = [&](std::size_t k) { return slot(m, k); };
      combine(source_of, begin, std::min(chunks_.longest, step.own.count - begin));
    }
  }

 private:
  /// The participants that differ from this rank in their position in the stage only.
  HalvingStep step_with_group(std::size_t stage) const noexcept {
    const int self = stages_.participant(rank_);
    const int position = stages_.position(self, stage);
    HalvingStep made;
    made.longest = stages_.longest_part(count_, stage);
    made.before_own = static_cast<std::size_t>(position);
    for (int other = 0; other < stages_.factor(stage); ++other) {
      if (other != position) {
        made.transfers[made.peers++].peer = stages_.rank(self + (other - position) * stages_.distance(stage));
      }
    }
    return made;
  }

  /// A part of what this rank has kept up to the stage.
  HalvingPart part(std::size_t stage, int position) const noexcept {
    return stages_.part(count_, stages_.participant(rank_), stage, position);
  }

  bool has_partials(int rank, std::size_t stage) const noexcept { return stage > 0 || stages_.is_paired(rank); }

  HalvingPart kept_partials() const noexcept {
    if (!stages_.takes_part(rank_)) {
      return {};
    }
    return stages_.is_paired(rank_) ? HalvingPart{0, count_} : part(0, stages_.position(stages_.participant(rank_), 0));
  }

  HalvingRange range(const HalvingPart& elements, bool is_partial) const noexcept {
    const std::byte* const data = is_partial ? partials_at(elements.begin) : buffers_.input + elements.begin * element_;
    return {data, elements.count, is_partial ? wide_ : element_, is_partial};
  }

  std::byte* partials_at(std::size_t begin) const noexcept {
    return combine_.widens() ? partials_ + (begin - first_kept_) * wide_ : buffers_.output + begin * element_;
  }

  std::byte* slot(std::size_t m, std::size_t k) const noexcept {
    return slots_ + (m % in_flight_ * peers_ + k) * chunks_.longest * wide_;
  }

  template <class SourceOf>
  void combine(SourceOf source_of, std::size_t begin, std::size_t count) const noexcept {
    std::array<kernels::PartialReduction::Operand, HalvingStages::max_factor> sources{};
    for (std::size_t k = 0; k < step.peers; ++k) {
      sources[k < step.before_own ? k : k + 1] = {source_of(k), step.transfers[k].received.is_partial};
    }
    sources[step.before_own] = {step.own.data + begin * step.own.width, step.own.is_partial};
    combine_(std::span(sources).first(step.peers + 1), step.target + begin * (step.last ? element_ : wide_), count,
             step.last);
  }

  HalvingStages stages_;
  int rank_;
  Buffers buffers_;
  std::size_t count_;
  kernels::PartialReduction combine_;
  std::size_t element_;
  std::size_t wide_;
  std::size_t in_flight_;
  HalvingChunks chunks_;
  std::size_t header_;
  std::size_t peers_;
  std::byte* memory_;
  std::byte* slots_;
  std::byte* partials_;
  std::size_t first_kept_;
};

}  // namespace detail

/// Each rank sends as many bytes as in a ring, 2 (n - 1) / n of the buffer, in 2 log2(n) steps if the number of ranks n
/// is a power of two; see HalvingStages for other numbers. The ranks of a group combine a range in rank order, and one
/// rank reduces each block, so all ranks get the same bits. Partial results that are wider than the elements take
/// scratch memory: as long as half of the buffer, or the whole on a rank that stands for two.
template <Endpoint E>
Routine halving_doubling(OperationContext<E>& context, const Buffers& buffers) {
  detail::HalvingSchedule<E> schedule(context, buffers);
  const HalvingStages& stages = schedule.stages();
  const bool is_paired = stages.is_paired(context.rank());
  if (is_paired) {
    schedule.step = schedule.paired_step(false);
    Routine routine = exchange_chunks(context, schedule);
    co_await routine;
  }
  if (stages.takes_part(context.rank())) {
    for (std::size_t stage = 0; stage < stages.count(); ++stage) {
      schedule.step = schedule.halving_step(stage);
      Routine routine = exchange_chunks(context, schedule);
      co_await routine;
    }
    for (std::size_t stage = stages.count(); stage-- > 0;) {
      schedule.step = schedule.doubling_step(stage);
      Routine routine = exchange_chunks(context, schedule);
      co_await routine;
    }
  }
  if (is_paired) {
    schedule.step = schedule.paired_step(true);
    Routine routine = exchange_chunks(context, schedule);
    co_await routine;
  }
}

}  // namespace DTRAIN_NAMESPACE::backend::message_passing
