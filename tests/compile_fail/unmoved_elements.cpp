// What collectives cannot move as bytes, and a pointer with a length: each has a sentence.
// expect: dtrain: collectives move elements as bytes, and these are not trivially copyable
// expect: dtrain: std::vector<bool> has no memory with one value for each element: use std::vector<char>
// expect: dtrain: collectives move a value as bytes, and this one is not trivially copyable
// expect: dtrain: a pointer and a length are one argument here: give std::span(pointer, count)
// expect: dtrain: a reduction of one's own moves its values as bytes, and these are not trivially copyable
// expect: dtrain: all_reduce may cut bytes within an element
#include <cstddef>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "dtrain/dtrain.hpp"

using Policy = dtrain::Policy<dtrain::launch::PerProcess, dtrain::backend::SharedMemory>;
using Pair = std::pair<float, int>;

void give(const dtrain::ProcessGroup<Policy>& group, std::vector<std::vector<float>>& rows, std::vector<bool>& flags,
          Pair& pair, float* values, std::size_t count, std::vector<char>& bytes) {
  const auto lesser = [](const Pair& a, const Pair& b) { return a < b ? a : b; };
  const auto combine = [](std::span<char> into, std::span<const char> from) { into[0] = from[0]; };
#ifdef DTRAIN_COMPILE_FAIL
  group.all_reduce(rows);
  group.broadcast(flags, 0);
  group.broadcast(pair, 0);
  group.all_reduce(values, count);
  static_cast<void>(group.all_reduce(pair, lesser));
  group.all_reduce(bytes, combine);
#else
  for (std::vector<float>& row : rows)
    group.all_reduce(row);
  std::string text(flags.begin(), flags.end());
  group.broadcast_resized(text, 0);
  pair = lesser(pair, Pair(pair));
  group.all_reduce(std::span(values, count));
  group.reduce(bytes, 0, combine);
#endif
}
