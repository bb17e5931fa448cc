#pragma once
/// @file
/// How much memory this process may still take.

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>

#include "dtrain/net/descriptor.hpp"

namespace DTRAIN_NAMESPACE::backend::shared_memory {

/// The beginning of a small file of the kernel's; empty where it cannot be read.
inline std::string read_start(const char* path) {
  const net::Descriptor file(::open(path, O_RDONLY | O_CLOEXEC));
  std::array<char, 4096> text{};
  const ssize_t count = file ? ::read(file.get(), text.data(), text.size()) : -1;
  return count > 0 ? std::string(text.data(), static_cast<std::size_t>(count)) : std::string();
}

/// The number that follows `label` in `text`; `otherwise` where there is none.
inline std::uint64_t number_after(std::string_view text, std::string_view label, std::uint64_t otherwise) noexcept {
  const std::size_t place = text.find(label);
  if (place == std::string_view::npos) {
    return otherwise;
  }
  text.remove_prefix(place + label.size());
  text.remove_prefix(std::min(text.size(), text.find_first_not_of(' ')));
  std::uint64_t number = 0;
  const auto result = std::from_chars(text.data(), text.data() + text.size(), number);
  return result.ec == std::errc() ? number : otherwise;
}

/// Bytes, as the kernel estimates them: what is free or can be freed, and no more than the control group may ever use.
/// Asked before memory is allocated: the kernel ends processes where a memfd grows beyond it. No bound where it is
/// unknown.
inline std::uint64_t available_memory_bytes() {
  constexpr std::uint64_t unknown = std::numeric_limits<std::uint64_t>::max();
  const std::uint64_t kibibytes = number_after(read_start("/proc/meminfo"), "MemAvailable:", unknown / 1024);
  const std::uint64_t group_limit = number_after(read_start("/sys/fs/cgroup/memory.max"), "", unknown);
  return std::min(kibibytes > unknown / 1024 ? unknown : kibibytes * 1024, group_limit);
}

}  // namespace DTRAIN_NAMESPACE::backend::shared_memory
