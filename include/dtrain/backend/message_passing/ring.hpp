#pragma once
/// @file
/// Reduce-scatter and all-gather round a ring, in chunks that follow each other: large all_reduce, and both alone.

#include <array>
#include <cstddef>
#include <span>

#include "dtrain/backend/message_passing/blocks.hpp"
#include "dtrain/backend/message_passing/call.hpp"
#include "dtrain/backend/message_passing/opening.hpp"
#include "dtrain/backend/message_passing/routine.hpp"
#include "dtrain/core/dtype.hpp"
#include "dtrain/kernels/partial_reduction.hpp"

namespace DTRAIN_NAMESPACE::backend::message_passing {

/// What goes round. Source: P. Patarasuk and X. Yuan, "Bandwidth optimal all-reduce algorithms for clusters of
/// workstations", J. Parallel Distrib. Comput. 69 (2009); cut into chunks as NCCL's ring does.
struct RingWork {
  const std::byte* input;  ///< of the reduction: all blocks; unused where nothing is reduced
  std::byte* output;       ///< of an all-gather: all blocks, this rank's in its place; else this rank's block alone
  Blocks blocks;
  bool reduces;
  bool gathers;
};

namespace detail {

/// Names the messages of a ring, which are numbered: of a round, of a step in it, of a lane in that.
template <Wire W>
class RingRun {
 public:
  RingRun(Call<W>& call, const RingWork& work, std::byte* slots) noexcept
      : call_(call),
        work_(work),
        slots_(slots),
        combine_(call.partial_reduction()),
        lanes_(work.blocks.lanes()),
        reductions_(work.reduces ? static_cast<std::size_t>(call.size()) - 1 : 0),
        steps_(reductions_ + (work.gathers ? static_cast<std::size_t>(call.size()) - 1 : 0)) {}

  std::size_t messages() const noexcept { return work_.blocks.rounds() * steps_ * lanes_; }

  /// What message `m` to the next rank consists of.
  std::span<const std::byte> outgoing(std::size_t m) const noexcept {
    const std::size_t step = step_of(m);
    if (step < reductions_) {
      const Extent extent = extent_of(m, call_.before(static_cast<int>(step) + 1));
      return step == 0 ? std::span(work_.input + extent.offset, extent.bytes)
                       : std::span<const std::byte>(slot(m - lanes_), partial_bytes(extent));
    }
    const Extent extent = extent_of(m, call_.before(static_cast<int>(step - reductions_)));
    return {gathered(extent), extent.bytes};
  }

  /// Where message `m` from the rank before goes: first its contribution, then partial results, then results.
  std::span<std::byte> incoming(std::size_t m) const noexcept {
    const Extent extent = received(m);
    const std::size_t step = step_of(m);
    if (step >= reductions_) {
      return {gathered(extent), extent.bytes};
    }
    return step == 0 ? std::span(combine_.contributions_in(slot(m), extent.count), extent.bytes)
                     : std::span(slot(m), partial_bytes(extent));
  }

  /// Message `m` is here: this rank's contribution is combined with it.
  void arrived(std::size_t m) const noexcept {
    const std::size_t step = step_of(m);
    if (step >= reductions_) {
      return;
    }
    const Extent extent = received(m);
    const bool last = step + 1 == reductions_;
    const std::array<kernels::PartialReduction::Source, 2> sources{
        {{incoming(m).data(), step > 0}, {work_.input + extent.offset, false}}};
    combine_(sources, last ? reduced(extent) : slot(m), extent.count, last);
  }

 private:
  std::size_t step_of(std::size_t m) const noexcept { return m / lanes_ % steps_; }
  Extent extent_of(std::size_t m, int block) const noexcept {
    return work_.blocks.chunk(block, m / lanes_ / steps_, m % lanes_);
  }

  /// A block's way through the reduction begins behind its owner and ends with it; then it goes on from there.
  Extent received(std::size_t m) const noexcept {
    const std::size_t step = step_of(m);
    const std::size_t distance = step < reductions_ ? step + 2 : step - reductions_ + 1;
    return extent_of(m, call_.before(static_cast<int>(distance) % call_.size()));
  }

  std::size_t partial_bytes(const Extent& extent) const noexcept { return extent.count * size_bytes(combine_.type()); }

  std::byte* gathered(const Extent& extent) const noexcept { return work_.output + extent.offset; }
  std::byte* reduced(const Extent& extent) const noexcept {
    const std::size_t own = static_cast<std::size_t>(call_.rank()) * work_.blocks.block_bytes();
    return work_.output + extent.offset - (work_.gathers ? 0 : own);
  }

  /// Twice as many as lanes: one is sent while the next message for that lane arrives in the other.
  std::byte* slot(std::size_t m) const noexcept { return slots_ + m % (2 * lanes_) * work_.blocks.chunk_bytes(); }

  Call<W>& call_;
  const RingWork& work_;
  std::byte* slots_;
  kernels::PartialReduction combine_;
  std::size_t lanes_;
  std::size_t reductions_;  ///< steps in which something is reduced
  std::size_t steps_;
};

}  // namespace detail

/// Message m + lanes can be sent once message m is here. Message m + lanes is received once message m has been sent:
/// then the memory is free, and as every rank receives before it waits, no ring of waiting ranks closes.
template <Wire W>
Routine ring(Call<W>& call, const RingWork& work) {
  using Ticket = typename W::Ticket;
  const std::size_t lanes = work.blocks.lanes();
  const std::size_t opening = opening_bytes(call);
  std::byte* const memory = call.scratch.at_least(2 * opening + 2 * lanes * work.blocks.chunk_bytes());
  std::byte* const heard = memory + opening;
  const detail::RingRun<W> run(call, work, heard + opening);
  const std::size_t messages = run.messages();
  const int next = call.after(1);
  const int previous = call.before(1);

  const Ticket hello = call.wire.send(write_opening(call, memory, {}), next, Lane::collective);
  const Ticket answer = call.wire.recv(opening_memory(call, heard), previous, Lane::collective);
  std::array<Ticket, most_lanes> sent;
  std::array<Ticket, most_lanes> received;
  for (std::size_t m = 0; m < lanes; ++m) {
    received[m] = call.wire.recv(run.incoming(m), previous, Lane::collective);
    sent[m] = call.wire.send(run.outgoing(m), next, Lane::collective);
  }
  const std::size_t bytes = co_await call.wire.done(answer);
  check_opening(call, previous, heard, bytes, 0);
  for (std::size_t m = 0; m < messages; ++m) {
    const std::size_t lane = m % lanes;
    const std::size_t length = co_await call.wire.done(received[lane]);
    check_length(call, previous, length, run.incoming(m).size());
    run.arrived(m);
    co_await call.wire.done(sent[lane]);
    if (m + lanes < messages) {
      received[lane] = call.wire.recv(run.incoming(m + lanes), previous, Lane::collective);
      sent[lane] = call.wire.send(run.outgoing(m + lanes), next, Lane::collective);
    }
  }
  co_await call.wire.done(hello);
}

}  // namespace DTRAIN_NAMESPACE::backend::message_passing
