#pragma once
/// @file
/// LibraryTensor: bytes that collectives take as a tensor of another library, with a meaning of its elements, for tests
/// of dtrain::group::BufferOf.

#include <cstdint>
#include <vector>

#include "dtrain/core/types/buffer_view.hpp"
#include "dtrain/group/collectives/buffers.hpp"

namespace support {

struct LibraryTensor {
  std::vector<std::uint8_t>& bytes;
  dtrain::group::ElementMeaning meaning;
  int& writes;  ///< how often a collective has said that it will write
};

}  // namespace support

template <>
struct dtrain::group::BufferOf<support::LibraryTensor> {
  static dtrain::BufferView view(const support::LibraryTensor& tensor) { return WriteBuffer(tensor.bytes); }
  static ElementMeaning meaning(const support::LibraryTensor& tensor) { return tensor.meaning; }
  static void will_write(const support::LibraryTensor& tensor) { ++tensor.writes; }
};
