#pragma once
/// @file
/// digest(), a kernel: a fast hash of memory, equal on every processor; not for secrets.

#include <cstddef>
#include <cstdint>

#include "dtrain/core/config.hpp"

namespace DTRAIN_NAMESPACE::kernels {

/// The digest of nothing.
inline constexpr std::uint64_t digest_start = 0xcbf29ce484222325U;

/// The digest of a text followed by `bytes`, where `hash` is the digest of the text. Not for secrets: anybody can make
/// two contents with one digest. Blocking: at the speed of memory.
/// Source: FNV-1a (Fowler, Noll, Vo, draft-eastlake-fnv), of words of 8 bytes in place of bytes, with the upper half of
/// each product folded into the lower, and in four lanes, because one lane waits for its own products.
std::uint64_t digest(const std::byte* bytes, std::size_t count, std::uint64_t hash = digest_start) noexcept;

}  // namespace DTRAIN_NAMESPACE::kernels

#if DTRAIN_DEFINITIONS

#include <cstring>

namespace DTRAIN_NAMESPACE::kernels {

namespace detail {

DTRAIN_ALWAYS_INLINE std::uint64_t mixed(std::uint64_t hash, std::uint64_t word) noexcept {
  hash = (hash ^ word) * 0x100000001b3U;
  return hash ^ hash >> 32;
}

DTRAIN_ALWAYS_INLINE std::uint64_t word_at(const std::byte* bytes) noexcept {
  std::uint64_t word = 0;
  std::memcpy(&word, bytes, sizeof(word));
  return word;
}

}  // namespace detail

DTRAIN_OPTIMIZED DTRAIN_DEFINED std::uint64_t digest(const std::byte* bytes, std::size_t count,
                                                     std::uint64_t hash) noexcept {
  constexpr std::size_t word = sizeof(std::uint64_t);
  constexpr std::size_t block = 4 * word;
  if (count >= block) {
    std::uint64_t a = hash, b = hash + 1, c = hash + 2, d = hash + 3;
    for (; count >= block; bytes += block, count -= block) {
      a = detail::mixed(a, detail::word_at(bytes));
      b = detail::mixed(b, detail::word_at(bytes + word));
      c = detail::mixed(c, detail::word_at(bytes + 2 * word));
      d = detail::mixed(d, detail::word_at(bytes + 3 * word));
    }
    hash = detail::mixed(detail::mixed(detail::mixed(a, b), c), d);
  }
  for (; count >= word; bytes += word, count -= word) {
    hash = detail::mixed(hash, detail::word_at(bytes));
  }
  for (; count > 0; ++bytes, --count) {
    hash = detail::mixed(hash, static_cast<std::uint64_t>(*bytes));
  }
  return hash;
}

}  // namespace DTRAIN_NAMESPACE::kernels

#endif  // DTRAIN_DEFINITIONS
