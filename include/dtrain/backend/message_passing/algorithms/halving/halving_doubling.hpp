#pragma once
/// @file
/// Halving-doubling all-reduce (Rabenseifner): reduce-scatter by recursive halving, all-gather by recursive doubling.

#include <algorithm>
#include <array>
#include <cstddef>
#include <span>

#include "dtrain/backend/message_passing/algorithms/blocks.hpp"
#include "dtrain/backend/message_passing/algorithms/halving/halving_schedule.hpp"
#include "dtrain/backend/message_passing/algorithms/halving/halving_stages.hpp"
#include "dtrain/backend/message_passing/algorithms/operation_header.hpp"
#include "dtrain/backend/message_passing/operation_context.hpp"
#include "dtrain/backend/message_passing/routine.hpp"

namespace DTRAIN_NAMESPACE::backend::message_passing {
namespace detail {

/// Runs one step to its end.
template <Endpoint E>
Routine exchange_ranges(OperationContext<E>& context, const HalvingSchedule<E>& schedule, const HalvingStep& step) {
  using MessageHandle = typename E::MessageHandle;
  using Handles = std::array<MessageHandle, max_halving_peers>;
  const std::size_t in_flight = schedule.in_flight();
  const std::size_t messages = schedule.messages(step);
  const bool is_inline = schedule.is_inline(step);
  Handles header_sent;
  Handles header_received;
  std::array<Handles, max_chunks_in_flight> sent;
  std::array<Handles, max_chunks_in_flight> received;
  const auto start = [&](std::size_t m) {
    for (std::size_t k = 0; k < step.peers; ++k) {
      const int peer = step.transfers[k].peer;
      if (step.receives) {
        received[m % in_flight][k] = context.endpoint.recv(schedule.incoming(step, m, k), peer, TagClass::collective);
      }
      if (step.sends) {
        sent[m % in_flight][k] = context.endpoint.send(schedule.outgoing(step, m, k), peer, TagClass::collective);
      }
    }
  };
  for (std::size_t k = 0; step.compares && k < step.peers; ++k) {
    const HalvingTransfer& transfer = step.transfers[k];
    if (step.receives) {
      header_received[k] = context.endpoint.recv(header_memory(context, schedule.received_header(k)), transfer.peer,
                                                 TagClass::collective);
    }
    if (step.sends) {
      const std::span<const std::byte> payload =
          is_inline ? transfer.sent.chunk(0, transfer.sent.count) : std::span<const std::byte>();
      header_sent[k] = context.endpoint.send(write_header(context, schedule.sent_header(k), payload), transfer.peer,
                                             TagClass::collective);
    }
  }
  for (std::size_t m = 0; m < std::min(in_flight, messages); ++m) {
    start(m);
  }
  for (std::size_t k = 0; step.compares && step.receives && k < step.peers; ++k) {
    const HalvingTransfer& transfer = step.transfers[k];
    const std::size_t bytes = co_await context.endpoint.done(header_received[k]);
    check_header(context, transfer.peer, schedule.received_header(k), bytes,
                 is_inline ? transfer.received.count * transfer.received.width : 0);
  }
  if (is_inline) {
    schedule.headers_arrived(step);
  }
  for (std::size_t m = 0; m < messages; ++m) {
    for (std::size_t k = 0; step.receives && k < step.peers; ++k) {
      const std::size_t bytes = co_await context.endpoint.done(received[m % in_flight][k]);
      check_length(context, step.transfers[k].peer, bytes, schedule.incoming(step, m, k).size());
    }
    schedule.arrived(step, m);
    for (std::size_t k = 0; step.sends && k < step.peers; ++k) {
      co_await context.endpoint.done(sent[m % in_flight][k]);
    }
    if (m + in_flight < messages) {
      start(m + in_flight);
    }
  }
  for (std::size_t k = 0; step.compares && step.sends && k < step.peers; ++k) {
    co_await context.endpoint.done(header_sent[k]);
  }
}

}  // namespace detail

/// Each rank sends as many bytes as in a ring, 2 (n - 1) / n of the buffer, in 2 log2(n) steps if the number of ranks n
/// is a power of two; see HalvingStages for other numbers. The ranks of a group combine a range in rank order, and one
/// rank reduces each block, so all ranks get the same bits. Partial results that are wider than the elements take
/// scratch memory: as long as half of the buffer, or the whole on a rank that stands for two.
template <Endpoint E>
Routine halving_doubling(OperationContext<E>& context, const HalvingDoubling& work) {
  const detail::HalvingSchedule<E> schedule(context, work);
  const HalvingStages& stages = schedule.stages();
  const bool is_paired = stages.is_paired(context.rank());
  detail::HalvingStep step;
  if (is_paired) {
    step = schedule.paired_step(false);
    Routine routine = detail::exchange_ranges(context, schedule, step);
    co_await routine;
  }
  if (stages.takes_part(context.rank())) {
    for (std::size_t stage = 0; stage < stages.count(); ++stage) {
      step = schedule.halving_step(stage);
      Routine routine = detail::exchange_ranges(context, schedule, step);
      co_await routine;
    }
    for (std::size_t stage = stages.count(); stage-- > 0;) {
      step = schedule.doubling_step(stage);
      Routine routine = detail::exchange_ranges(context, schedule, step);
      co_await routine;
    }
  }
  if (is_paired) {
    step = schedule.paired_step(true);
    Routine routine = detail::exchange_ranges(context, schedule, step);
    co_await routine;
  }
}

}  // namespace DTRAIN_NAMESPACE::backend::message_passing
