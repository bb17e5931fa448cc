#pragma once
/// @file
/// Blocks: a buffer's blocks, one for each rank, and their chunks. exchange_chunks(): the pipeline of algorithms over
/// messages, several chunks in flight with each peer.

#include <algorithm>
#include <array>
#include <cstddef>
#include <span>

#include "dtrain/backend/message_passing/algorithms/operation_header.hpp"
#include "dtrain/backend/message_passing/endpoint.hpp"
#include "dtrain/backend/message_passing/operation_context.hpp"
#include "dtrain/core/types/dtype.hpp"

namespace DTRAIN_NAMESPACE::backend::message_passing {

/// The largest value of Tuning::chunks_in_flight.
inline constexpr std::size_t max_chunks_in_flight = 8;

/// A range of elements; `offset` in bytes from the beginning of the whole buffer.
struct Extent {
  std::size_t offset;
  std::size_t bytes;
  std::size_t count;
};

/// Blocks have equal lengths, except the last ones, which may be shorter or empty. A block is processed in rounds of
/// `chunks_in_flight()` chunks, which are in flight together.
class Blocks {
 public:
  /// Divides `count` elements into `blocks` blocks.
  Blocks(std::size_t count, DType dtype, int blocks, const Tuning& tuning) noexcept
      : Blocks(count, dtype, blocks, tuning, dtype) {}

  /// @param carried widest type in which a chunk is sent
  Blocks(std::size_t count, DType dtype, int blocks, const Tuning& tuning, DType carried) noexcept
      : count_(count), element_(size_bytes(dtype)), carried_(size_bytes(carried)), in_flight_(tuning.chunks_in_flight) {
    const std::size_t number = static_cast<std::size_t>(blocks);
    block_ = (count + number - 1) / number;
    const std::size_t longest = std::max<std::size_t>(1, tuning.chunk_bytes / carried_);
    rounds_ = std::max<std::size_t>(1, (block_ + in_flight_ * longest - 1) / (in_flight_ * longest));
    const std::size_t chunks = rounds_ * in_flight_;
    const std::size_t line = std::max<std::size_t>(1, 64 / element_);
    chunk_ = std::max<std::size_t>(1, (block_ + chunks - 1) / chunks);
    chunk_ = (chunk_ + line - 1) / line * line;
  }

  std::size_t chunks_in_flight() const noexcept { return in_flight_; }
  std::size_t rounds() const noexcept { return rounds_; }
  /// Chunks of the longest block that have elements; at least one.
  std::size_t chunks() const noexcept { return std::max<std::size_t>(1, (block_ + chunk_ - 1) / chunk_); }
  std::size_t chunk_bytes() const noexcept { return chunk_ * carried_; }  ///< memory for one in its widest type
  std::size_t block_bytes() const noexcept { return block_ * element_; }

  Extent block(int block) const noexcept {
    const std::size_t begin = std::min(count_, static_cast<std::size_t>(block) * block_);
    return extent(begin, std::min(count_, begin + block_));
  }

  Extent chunk(int block, std::size_t round, std::size_t index) const noexcept {
    const std::size_t block_begin = std::min(count_, static_cast<std::size_t>(block) * block_);
    const std::size_t block_end = std::min(count_, block_begin + block_);
    const std::size_t begin = std::min(block_end, block_begin + (round * in_flight_ + index) * chunk_);
    return extent(begin, std::min(block_end, begin + chunk_));
  }

 private:
  Extent extent(std::size_t begin, std::size_t end) const noexcept {
    return {begin * element_, (end - begin) * element_, end - begin};
  }

  std::size_t count_;
  std::size_t element_;
  std::size_t carried_;
  std::size_t in_flight_;
  std::size_t rounds_;
  std::size_t block_;
  std::size_t chunk_;
};

/// Base of a schedule that sends and receives, with headers that carry no payload.
struct ChunkSchedule {
  static constexpr bool sends() noexcept { return true; }
  static constexpr bool receives() noexcept { return true; }
  static constexpr bool compares() noexcept { return true; }    ///< the first messages are headers
  static constexpr bool is_inline() noexcept { return false; }  ///< the headers carry all, and no chunks follow
  static std::span<const std::byte> payload(std::size_t /*k*/) noexcept { return {}; }
  static std::size_t received_payload(std::size_t /*k*/) noexcept { return 0; }  ///< bytes
  static void headers_arrived() noexcept {}
};

/// Exchange k of peers() sends to rank to(k) and receives from rank from(k). Chunk m + in_flight() is started after
/// chunk m has arrived, because it may hold the combined result, and after chunk m has been sent: then its memory is
/// free. Every rank posts a recv before it waits, so ranks cannot deadlock in a ring.
/// @tparam Schedule has the members of ChunkSchedule and `most_peers`; peers(), to(k) and from(k); in_flight() and
/// messages(), the number of chunks; sent_header(k), which exchanges may share, and received_header(k); outgoing(m, k)
/// and incoming(m, k), the memory of chunk m; arrived(m), called when chunk m of every exchange is there
template <Endpoint E, class Schedule>
Routine exchange_chunks(OperationContext<E>& context, Schedule schedule) {
  using Handles = std::array<typename E::MessageHandle, Schedule::most_peers>;
  const std::size_t in_flight = schedule.in_flight();
  const std::size_t messages = schedule.is_inline() ? 0 : schedule.messages();
  const std::size_t peers = schedule.peers();
  Handles header_sent;
  Handles header_received;
  std::array<Handles, max_chunks_in_flight> sent;
  std::array<Handles, max_chunks_in_flight> received;
  const auto start = [&](std::size_t m) {
    for (std::size_t k = 0; schedule.receives() && k < peers; ++k) {
      received[m % in_flight][k] =
          context.endpoint.recv(schedule.incoming(m, k), schedule.from(k), TagClass::collective);
    }
    for (std::size_t k = 0; schedule.sends() && k < peers; ++k) {
      sent[m % in_flight][k] = context.endpoint.send(schedule.outgoing(m, k), schedule.to(k), TagClass::collective);
    }
  };
  std::span<const std::byte> header;
  for (std::size_t k = 0; schedule.compares() && k < peers; ++k) {
    if (schedule.receives()) {
      header_received[k] = context.endpoint.recv(header_memory(context, schedule.received_header(k)), schedule.from(k),
                                                 TagClass::collective);
    }
    if (schedule.sends()) {
      if (header.data() != schedule.sent_header(k)) {
        header = write_header(context, schedule.sent_header(k), schedule.payload(k));
      }
      header_sent[k] = context.endpoint.send(header, schedule.to(k), TagClass::collective);
    }
  }
  for (std::size_t m = 0; m < std::min(in_flight, messages); ++m) {
    start(m);
  }
  for (std::size_t k = 0; schedule.compares() && schedule.receives() && k < peers; ++k) {
    const std::size_t bytes = co_await context.endpoint.done(header_received[k]);
    check_header(context, schedule.from(k), schedule.received_header(k), bytes, schedule.received_payload(k));
  }
  if (schedule.is_inline()) {
    schedule.headers_arrived();
  }
  for (std::size_t m = 0; m < messages; ++m) {
    for (std::size_t k = 0; schedule.receives() && k < peers; ++k) {
      const std::size_t bytes = co_await context.endpoint.done(received[m % in_flight][k]);
      check_length(context, schedule.from(k), bytes, schedule.incoming(m, k).size());
    }
    schedule.arrived(m);
    for (std::size_t k = 0; schedule.sends() && k < peers; ++k) {
      co_await context.endpoint.done(sent[m % in_flight][k]);
    }
    if (m + in_flight < messages) {
      start(m + in_flight);
    }
  }
  for (std::size_t k = 0; schedule.compares() && schedule.sends() && k < peers; ++k) {
    co_await context.endpoint.done(header_sent[k]);
  }
}

}  // namespace DTRAIN_NAMESPACE::backend::message_passing
