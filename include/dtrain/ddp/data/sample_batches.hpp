#pragma once
/// @file
/// SampleBatches: the samples of one rank in one epoch, divided into batches.

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <span>
#include <utility>
#include <vector>

#include "dtrain/core/version.hpp"

namespace DTRAIN_NAMESPACE::ddp {

/// A range of `std::span<const std::size_t>`, one for each batch: indices into the data set. Allocated once an epoch.
/// Lifetime: the spans point into this object.
class SampleBatches {
 public:
  /// Every batch has `batch_size` samples (at least one); the last one has the rest.
  SampleBatches(std::vector<std::size_t> samples, std::size_t batch_size)
      : samples_(std::move(samples)), batch_size_(batch_size) {}

  class Iterator {
   public:
    using iterator_category = std::input_iterator_tag;  // operator* returns a value
    using iterator_concept = std::forward_iterator_tag;
    using value_type = std::span<const std::size_t>;
    using difference_type = std::ptrdiff_t;
    using pointer = const value_type*;
    using reference = value_type;

    Iterator() noexcept = default;
    Iterator(const SampleBatches* batches, std::size_t batch) noexcept : batches_(batches), batch_(batch) {}

    value_type operator*() const { return (*batches_)[batch_]; }
    Iterator& operator++() {
      ++batch_;
      return *this;
    }
    Iterator operator++(int) { return {batches_, batch_++}; }
    friend bool operator==(const Iterator&, const Iterator&) = default;

   private:
    const SampleBatches* batches_ = nullptr;
    std::size_t batch_ = 0;
  };

  /// The number of batches.
  std::size_t size() const noexcept { return (samples_.size() + batch_size_ - 1) / batch_size_; }
  bool empty() const noexcept { return samples_.empty(); }

  /// Batch `batch`, which is less than size().
  std::span<const std::size_t> operator[](std::size_t batch) const {
    const std::size_t first = batch * batch_size_;
    return {samples_.data() + first, std::min(batch_size_, samples_.size() - first)};
  }

  /// All samples, batch after batch.
  std::span<const std::size_t> samples() const noexcept { return {samples_.data(), samples_.size()}; }

  Iterator begin() const noexcept { return {this, 0}; }
  Iterator end() const noexcept { return {this, size()}; }

 private:
  std::vector<std::size_t> samples_;
  std::size_t batch_size_;
};

}  // namespace DTRAIN_NAMESPACE::ddp
