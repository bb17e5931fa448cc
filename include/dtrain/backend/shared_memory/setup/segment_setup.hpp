#pragma once
/// @file
/// SegmentSetup: maps a new segment on every rank of a channel, or on none.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "dtrain/backend/shared_memory/segment.hpp"
#include "dtrain/backend/shared_memory/setup/setup_connections.hpp"
#include "dtrain/backend/shared_memory/setup/setup_message.hpp"

namespace DTRAIN_NAMESPACE::backend::shared_memory {

/// A segment, and the nonce that rank 0 drew for it.
struct MappedSegment {
  std::shared_ptr<Segment> segment;
  std::size_t stride = 0;  ///< from one rank's memory to the next
  std::uint64_t nonce = 0;
};

/// Passes a mapping to another thread of the same process. The message carries the address of an InProcessTransfer on
/// the heap, which the receiver then owns. (A receiver that fails before it reads the message leaks it.)
struct InProcessTransfer {
  std::shared_ptr<Segment> segment;
  std::atomic<bool> ready{false};  ///< orders the two threads; in C++'s memory model a socket does not

  static std::uint64_t give(const std::shared_ptr<Segment>& segment) {
    auto transfer = std::make_unique<InProcessTransfer>();
    transfer->segment = segment;
    transfer->ready.store(true, std::memory_order_release);
    return reinterpret_cast<std::uintptr_t>(transfer.release());
  }
  static std::shared_ptr<Segment> take(std::uint64_t address) {
    const std::unique_ptr<InProcessTransfer> transfer(
        reinterpret_cast<InProcessTransfer*>(static_cast<std::uintptr_t>(address)));
    return transfer->ready.load(std::memory_order_acquire) ? std::move(transfer->segment) : nullptr;
  }
};

/// One setup. Ends the same way on every rank:
/// - peers request a size; rank 0 compares the sizes and offers a segment;
/// - every rank reserves the pages of its own memory; peers answer whether they could;
/// - rank 0 sends the outcome.
class SegmentSetup {
 public:
  SegmentSetup(SetupConnections& connections, std::uint64_t number, std::size_t bytes, Deadline deadline)
      : connections_(connections), number_(number), bytes_(bytes), deadline_(deadline), stride_(stride_for(bytes)) {}

  /// Collective, blocking. @throws JobFailed; Error, the same on every rank that can still be reached: disagreement if
  /// sizes differ (naming both), out_of_memory, timeout, closed
  MappedSegment run() { return connections_.rank() == 0 ? offer() : accept(); }

 private:
  static std::size_t stride_for(std::size_t bytes) noexcept {
    const std::size_t unit = bytes >= huge_page_bytes ? huge_page_bytes : static_cast<std::size_t>(::getpagesize());
    return round_up(std::max<std::size_t>(bytes, 1), unit);
  }

  SetupMessage message(SetupMessageKind kind) const noexcept {
    SetupMessage made;
    made.kind = kind;
    made.rank = connections_.rank();
    made.number = number_;
    made.bytes = bytes_;
    return made;
  }

  MappedSegment offer() {
    try {
      compare_requests();
      const MappedSegment shared = create();
      for (int peer = 1; peer < connections_.size(); ++peer) {
        send_offer(peer, shared);
      }
      shared.segment->reserve(0, bytes_);
      for (int peer = 1; peer < connections_.size(); ++peer) {
        connections_.receive(peer, SetupMessageKind::ready, number_, deadline_).throw_if_error();
      }
      shared.segment->close_descriptor();
      send_outcome(message(SetupMessageKind::outcome));
      return shared;
    } catch (const Error& error) {
      SetupMessage outcome = message(SetupMessageKind::outcome);
      outcome.set_error(error);
      send_outcome(outcome);
      throw;
    }
  }

  void compare_requests() {
    for (int peer = 1; peer < connections_.size(); ++peer) {
      const SetupMessage request = connections_.receive(peer, SetupMessageKind::request, number_, deadline_);
      if (request.bytes != bytes_) {
        throw Error(Errc::disagreement, "rank " + std::to_string(connections_.job_rank(0)) + " allocates " +
                                            std::to_string(bytes_) + " bytes of shared memory and rank " +
                                            std::to_string(connections_.job_rank(peer)) + " allocates " +
                                            std::to_string(request.bytes) + "; every rank asks for the same size");
      }
    }
  }

  MappedSegment create() const {
    const auto ranks = static_cast<std::size_t>(connections_.size());
    if (bytes_ > (std::size_t{1} << 56) / ranks) {
      throw Error(Errc::out_of_memory, "allocating " + std::to_string(bytes_) + " bytes of shared memory for each of " +
                                           std::to_string(ranks) + " ranks: no machine has an address space for that");
    }
    std::uint64_t nonce = 0;
    const auto random = random_bytes<sizeof(nonce)>();
    std::memcpy(&nonce, random.data(), sizeof(nonce));
    return {Segment::create(size_of_segment(), ranks * bytes_), stride_, nonce};
  }

  void send_offer(int peer, const MappedSegment& shared) {
    SetupMessage offer = message(SetupMessageKind::offer);
    offer.nonce = shared.nonce;
    if (!connections_.socket(peer).same_process) {
      connections_.send(peer, offer, deadline_);
      connections_.send_descriptor(peer, shared.segment->descriptor(), deadline_);
      return;
    }
    offer.address = InProcessTransfer::give(shared.segment);
    try {
      connections_.send(peer, offer, deadline_);
    } catch (...) {
      InProcessTransfer::take(offer.address);
      throw;
    }
  }

  /// Best effort if the outcome is an error: a lost peer has its own.
  void send_outcome(const SetupMessage& outcome) {
    for (int peer = 1; peer < connections_.size(); ++peer) {
      try {
        connections_.send(peer, outcome, Deadline::after(std::chrono::seconds(1)));
      } catch (const Error&) {
        if (outcome.code == 0) {
          throw;
        }
      }
    }
  }

  MappedSegment accept() {
    connections_.send_before_receiving(message(SetupMessageKind::request), deadline_);
    const SetupMessage offer = connections_.receive(0, SetupMessageKind::offer, number_, deadline_);
    MappedSegment shared{nullptr, stride_, offer.nonce};
    SetupMessage ready = message(SetupMessageKind::ready);
    try {
      shared.segment = connections_.socket(0).same_process
                           ? InProcessTransfer::take(offer.address)
                           : Segment::adopt(connections_.receive_descriptor(0, deadline_), size_of_segment());
      shared.segment->reserve(static_cast<std::size_t>(connections_.rank()) * stride_, bytes_);
    } catch (const JobFailed&) {
      throw;
    } catch (const Error& error) {
      ready.set_error(Error(
          error.code(), "on rank " + std::to_string(connections_.job_rank(connections_.rank())) + ": " + error.what()));
    }
    connections_.send_before_receiving(ready, deadline_);
    connections_.receive(0, SetupMessageKind::outcome, number_, deadline_).throw_if_error();
    shared.segment->close_descriptor();
    return shared;
  }

  std::size_t size_of_segment() const noexcept { return static_cast<std::size_t>(connections_.size()) * stride_; }

  SetupConnections& connections_;
  const std::uint64_t number_;
  const std::size_t bytes_;
  const Deadline deadline_;
  const std::size_t stride_;
};

}  // namespace DTRAIN_NAMESPACE::backend::shared_memory
