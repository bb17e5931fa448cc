#pragma once
/// @file
/// SharedCause: the cause of a failure in shared memory.

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>

#include "dtrain/core/cause.hpp"

namespace DTRAIN_NAMESPACE::backend::shared_memory {

/// A Cause that other processes can read; longer texts are truncated.
struct SharedCause {
  std::uint32_t kind = 0;
  std::int32_t rank = -1;
  std::array<char, 64> host{};
  std::array<char, 944> text{};

  void store(const Cause& cause) noexcept {
    kind = static_cast<std::uint32_t>(cause.kind);
    rank = cause.rank;
    copy(cause.host, host);
    copy(cause.text, text);
  }

  Cause load() const {
    const bool known =
        kind >= static_cast<std::uint32_t>(CauseKind::lost) && kind <= static_cast<std::uint32_t>(CauseKind::stopped);
    return {known ? static_cast<CauseKind>(kind) : CauseKind::exception, rank, text_of(host), text_of(text)};
  }

 private:
  static void copy(std::string_view from, std::span<char> to) noexcept {
    const std::size_t length = std::min(from.size(), to.size());
    std::memcpy(to.data(), from.data(), length);
    std::fill(to.begin() + static_cast<std::ptrdiff_t>(length), to.end(), '\0');
  }
  static std::string text_of(std::span<const char> from) {
    const auto end = std::find(from.begin(), from.end(), '\0');
    return {from.begin(), end};
  }
};

}  // namespace DTRAIN_NAMESPACE::backend::shared_memory
