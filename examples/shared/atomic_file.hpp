#pragma once
/// @file
/// Writes a file so that nobody ever sees half of it.

#include <cstddef>
#include <span>
#include <string>

#include "dtrain/ddp/checkpoint/atomic_file.hpp"

namespace shared {

/// `path` gets `bytes` or stays what it was. Blocking: the file system.
/// @throws dtrain::Error (the system's code) naming the file.
inline void write_file_atomically(const std::string& path, std::span<const std::byte> bytes) {
  dtrain::ddp::AtomicFile file(path);
  file.write(bytes);
  file.commit();
}

}  // namespace shared
