#pragma once
/// @file
/// ScratchMemory: scratch memory of a group, kept between its collectives.

#include <cstddef>
#include <vector>

#include "dtrain/core/version.hpp"

namespace DTRAIN_NAMESPACE::group {

/// Fresh memory costs more than a short collective: above malloc's threshold for a mapping each page is a fault.
/// Threads: one at a time.
class ScratchMemory {
 public:
  static constexpr std::size_t alignment = 64;
  static constexpr std::size_t kept_bytes = std::size_t{4} << 20;

  /// At least `bytes` of memory with any content. Lifetime: until the next call, which frees what is above kept_bytes.
  std::byte* of(std::size_t bytes) {
    const std::size_t lines = (bytes + alignment - 1) / alignment;
    if (lines > lines_.size() || lines_.size() > kept_bytes / alignment) {
      lines_ = {};
      lines_.resize(lines);
    }
    return lines_.empty() ? nullptr : lines_.front().bytes;
  }

 private:
  struct alignas(alignment) Line {
    std::byte bytes[alignment];
  };
  std::vector<Line> lines_;
};

}  // namespace DTRAIN_NAMESPACE::group
