#pragma once
/// @file
/// A bucket at run time: a range of the arena, and the event of its reduction.

#include "dtrain/core/buffer_view.hpp"
#include "dtrain/ddp/bucket_plan.hpp"
#include "dtrain/stream/stream.hpp"

namespace DTRAIN_NAMESPACE::ddp {

/// Reused by every step, so nothing is allocated in them.
template <stream::Event Event>
struct Bucket {
  BufferView range;
  Event reduced;
};

/// The elements of `planned` in an arena at `arena`, padding included: zeros, which every reduction leaves as they are.
inline BufferView range_of(const PlannedBucket& planned, std::byte* arena) noexcept {
  std::byte* const data = planned.bytes == 0 ? nullptr : arena + planned.offset;
  return {data, planned.bytes / size_bytes(planned.dtype), planned.dtype, planned.device};
}

}  // namespace DTRAIN_NAMESPACE::ddp
