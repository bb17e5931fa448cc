#pragma once
/// @file
/// The same work on several threads at once.

#include <cstddef>
#include <thread>
#include <vector>

namespace support {

/// Blocking. Runs `body(i)` on a thread for each i below `count`. @param body throws nothing
template <class Body>
void on_threads(std::size_t count, const Body& body) {
  std::vector<std::jthread> threads;
  for (std::size_t i = 0; i < count; ++i)
    threads.emplace_back([&body, i] { body(i); });
}

}  // namespace support
