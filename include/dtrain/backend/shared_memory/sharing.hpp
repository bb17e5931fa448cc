#pragma once
/// @file
/// How a new segment comes to every rank of a channel, or to none.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "dtrain/backend/shared_memory/links.hpp"
#include "dtrain/backend/shared_memory/message.hpp"
#include "dtrain/backend/shared_memory/segment.hpp"

namespace DTRAIN_NAMESPACE::backend::shared_memory {

/// A segment and what rank 0 drew for it.
struct Shared {
  std::shared_ptr<Segment> segment;
  std::size_t stride = 0;  ///< from one rank's part to the next
  std::uint64_t nonce = 0;
};

/// How a mapping goes from one thread to another of the same process: the message carries the address of a Handover on
/// the heap, which the receiver owns from then on. (A receiver that fails before it reads the message leaks it.)
struct Handover {
  std::shared_ptr<Segment> segment;
  std::atomic<bool> ready{false};  ///< orders the two threads; a socket does not, in the language's terms

  static std::uint64_t give(const std::shared_ptr<Segment>& segment) {
    auto handover = std::make_unique<Handover>();
    handover->segment = segment;
    handover->ready.store(true, std::memory_order_release);
    return reinterpret_cast<std::uintptr_t>(handover.release());
  }
  static std::shared_ptr<Segment> take(std::uint64_t address) {
    const std::unique_ptr<Handover> handover(reinterpret_cast<Handover*>(static_cast<std::uintptr_t>(address)));
    return handover->ready.load(std::memory_order_acquire) ? std::move(handover->segment) : nullptr;
  }
};

/// One exchange: peers say how much they want, rank 0 compares and offers a segment, everybody reserves the pages of
/// its own part and says whether it could, rank 0 tells the verdict. Ends the same way on every rank.
class Sharing {
 public:
  Sharing(Links& links, std::uint64_t number, std::size_t bytes, Deadline deadline)
      : links_(links), number_(number), bytes_(bytes), deadline_(deadline), stride_(stride_for(bytes)) {}

  /// Collective, blocking. @throws Error: disagreement where the sizes differ (naming both), out_of_memory, timeout,
  /// closed; the same on every rank that can still be told. JobFailed
  Shared run() { return links_.rank() == 0 ? offer() : accept(); }

 private:
  static std::size_t stride_for(std::size_t bytes) noexcept {
    const std::size_t unit = bytes >= huge_page_bytes ? huge_page_bytes : static_cast<std::size_t>(::getpagesize());
    return round_up(std::max<std::size_t>(bytes, 1), unit);
  }

  Message message(MessageKind kind) const noexcept {
    Message made;
    made.kind = kind;
    made.rank = links_.rank();
    made.number = number_;
    made.bytes = bytes_;
    return made;
  }

  Shared offer() {
    try {
      compare_requests();
      const Shared shared = create();
      for (int peer = 1; peer < links_.size(); ++peer) {
        send_offer(peer, shared);
      }
      shared.segment->reserve(0, bytes_);
      for (int peer = 1; peer < links_.size(); ++peer) {
        links_.receive(peer, MessageKind::ready, number_, deadline_).throw_if_error();
      }
      shared.segment->close_descriptor();
      tell_verdict(message(MessageKind::verdict));
      return shared;
    } catch (const Error& error) {
      Message verdict = message(MessageKind::verdict);
      verdict.set_error(error);
      tell_verdict(verdict);
      throw;
    }
  }

  void compare_requests() {
    for (int peer = 1; peer < links_.size(); ++peer) {
      const Message request = links_.receive(peer, MessageKind::request, number_, deadline_);
      if (request.bytes != bytes_) {
        throw Error(Errc::disagreement, "rank " + std::to_string(links_.job_rank(0)) + " allocates " +
                                            std::to_string(bytes_) + " bytes of shared memory and rank " +
                                            std::to_string(links_.job_rank(peer)) + " allocates " +
                                            std::to_string(request.bytes) + "; every rank asks for the same size");
      }
    }
  }

  Shared create() const {
    const auto ranks = static_cast<std::size_t>(links_.size());
    if (bytes_ > (std::size_t{1} << 56) / ranks) {
      throw Error(Errc::out_of_memory, "allocating " + std::to_string(bytes_) + " bytes of shared memory for each of " +
                                           std::to_string(ranks) + " ranks: no machine has an address space for that");
    }
    std::uint64_t nonce = 0;
    const auto random = rendezvous::random_bytes<sizeof(nonce)>();
    std::memcpy(&nonce, random.data(), sizeof(nonce));
    return {Segment::create(size_of_segment(), ranks * bytes_), stride_, nonce};
  }

  void send_offer(int peer, const Shared& shared) {
    Message offer = message(MessageKind::offer);
    offer.nonce = shared.nonce;
    if (!links_.link(peer).same_process) {
      links_.send(peer, offer, deadline_);
      links_.send_descriptor(peer, shared.segment->descriptor(), deadline_);
      return;
    }
    offer.address = Handover::give(shared.segment);
    try {
      links_.send(peer, offer, deadline_);
    } catch (...) {
      Handover::take(offer.address);
      throw;
    }
  }

  /// Best effort where it is an error: a peer that has gone has its own.
  void tell_verdict(const Message& verdict) {
    for (int peer = 1; peer < links_.size(); ++peer) {
      try {
        links_.send(peer, verdict, Deadline::after(std::chrono::seconds(1)));
      } catch (const Error&) {
        if (verdict.code == 0) {
          throw;
        }
      }
    }
  }

  Shared accept() {
    links_.send_before_receiving(message(MessageKind::request), deadline_);
    const Message offer = links_.receive(0, MessageKind::offer, number_, deadline_);
    Shared shared{nullptr, stride_, offer.nonce};
    Message ready = message(MessageKind::ready);
    try {
      shared.segment = links_.link(0).same_process
                           ? Handover::take(offer.address)
                           : Segment::adopt(links_.receive_descriptor(0, deadline_), size_of_segment());
      shared.segment->reserve(static_cast<std::size_t>(links_.rank()) * stride_, bytes_);
    } catch (const JobFailed&) {
      throw;
    } catch (const Error& error) {
      ready.set_error(
          Error(error.code(), "on rank " + std::to_string(links_.job_rank(links_.rank())) + ": " + error.what()));
    }
    links_.send_before_receiving(ready, deadline_);
    links_.receive(0, MessageKind::verdict, number_, deadline_).throw_if_error();
    shared.segment->close_descriptor();
    return shared;
  }

  std::size_t size_of_segment() const noexcept { return static_cast<std::size_t>(links_.size()) * stride_; }

  Links& links_;
  const std::uint64_t number_;
  const std::size_t bytes_;
  const Deadline deadline_;
  const std::size_t stride_;
};

}  // namespace DTRAIN_NAMESPACE::backend::shared_memory
