#pragma once
/// @file
/// A piece of an operation on its way, with the events that pass it on.

#include <array>
#include <cstddef>
#include <deque>
#include <mutex>
#include <vector>

#include "dtrain/core/config.hpp"
#include "dtrain/stream/cuda/event.hpp"
#include "dtrain/stream/cuda/external_event.hpp"
#include "dtrain/stream/cuda/pinned_buffer.hpp"

#if DTRAIN_WITH_CUDA

namespace DTRAIN_NAMESPACE::backend::staged {

/// The device says that the piece is on the host, a thread runs the host's operation on it, and that says to the device
/// that the result may be fetched.
struct Parcel {
  explicit Parcel(std::byte* pinned_word) : arrived(pinned_word) {}

  stream::cuda::Event reached;          ///< the program's stream has come to the piece
  stream::cuda::Event departed;         ///< the piece is in host memory
  stream::cuda::ExternalEvent arrived;  ///< its result is
  std::byte* input = nullptr;           ///< what the host's operation reads and writes
  std::byte* output = nullptr;
  std::size_t input_count = 0;
  std::size_t output_count = 0;
  Parcel* next = nullptr;  ///< of the same order
};

/// Owns parcels and lends them; grows where all are lent. Threads: all members from any.
class ParcelPool {
 public:
  /// @throws Error (cuda) where there is no more pinned memory
  ParcelPool() { grow(); }

  /// Whether the next take() allocates, which may wait for the whole device.
  bool is_empty() {
    const std::lock_guard lock(mutex_);
    return free_.empty();
  }

  /// @throws Error (cuda) where there is no more pinned memory
  Parcel& take() {
    const std::lock_guard lock(mutex_);
    if (free_.empty()) {
      grow();
    }
    Parcel& parcel = *free_.back();
    free_.pop_back();
    parcel.arrived.reset();
    parcel.next = nullptr;
    return parcel;
  }

  /// Lets its device go on, and takes the parcel back. What waits for it may not have come to that yet.
  void give_back(Parcel& parcel) noexcept {
    parcel.arrived.signal();
    const std::lock_guard lock(mutex_);
    free_.push_back(&parcel);  // there is room for all
  }

  /// The same for a chain.
  void give_back_all(Parcel* first) noexcept {
    for (Parcel* next = nullptr; first != nullptr; first = next) {
      next = first->next;
      give_back(*first);
    }
  }

 private:
  static constexpr std::size_t parcels_together = 256;
  static constexpr std::size_t word_distance = 64;  // a cache line each

  void grow() {
    words_.emplace_back(parcels_together * word_distance);
    free_.reserve(parcels_.size() + parcels_together);
    for (std::size_t i = 0; i < parcels_together; ++i) {
      parcels_.emplace_back(words_.back().data() + i * word_distance);
      free_.push_back(&parcels_.back());
    }
  }

  std::mutex mutex_;
  std::deque<stream::cuda::PinnedBuffer> words_;
  std::deque<Parcel> parcels_;
  std::vector<Parcel*> free_;
};

}  // namespace DTRAIN_NAMESPACE::backend::staged

#endif  // DTRAIN_WITH_CUDA
