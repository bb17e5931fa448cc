#pragma once
/// @file
/// One request, carried out: the same steps for every system.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "bench/all_reduce/pattern.hpp"
#include "bench/all_reduce/protocol.hpp"

namespace bench {

/// The distance of two buffers: no two share a cache line.
constexpr std::size_t buffer_stride(std::size_t bytes) noexcept {
  return (bytes + 63) / 64 * 64;
}

/// `reduce(buffer)` of every buffer between one `meet()` and the next. @param iteration counts on, the same on every
/// rank @throws what they throw; std::runtime_error for a wrong result
template <class Meet, class Reduce>
std::vector<Interval> measure(const Request& request, const Pattern& pattern, std::byte* memory,
                              std::uint64_t& iteration, Meet meet, Reduce reduce) {
  std::vector<Interval> intervals;
  const std::size_t stride = buffer_stride(request.bytes);
  const auto count = static_cast<std::size_t>(request.buffers);
  for (int sample = -request.warm_ups; sample < request.samples; ++sample) {
    for (std::size_t i = 0; i < count; ++i) {
      pattern.fill(memory + i * stride, request.bytes, iteration + i);
    }
    meet();
    Interval interval;
    interval.begin = now_nanoseconds();
    for (std::size_t i = 0; i < count; ++i) {
      reduce(memory + i * stride);
    }
    interval.end = now_nanoseconds();
    meet();
    for (std::size_t i = 0; i < count; ++i) {
      pattern.check(memory + i * stride, request.bytes, iteration + i);
    }
    meet();  // a limit's rank writes into others' buffers without being asked
    iteration += count;
    if (sample >= 0) {
      intervals.push_back(interval);
    }
  }
  return intervals;
}

}  // namespace bench
