#pragma once
/// @file
/// The limit of an all-reduce in shared memory: its loads and stores, and nothing else. Each rank reads its slice of
/// all ranks' buffers and writes the sum to all of them.

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#define BENCH_VECTOR_TARGET __attribute__((target("avx2")))
#else
#define BENCH_VECTOR_TARGET
#endif

namespace bench {

/// The kernels by name. On other processors than x86-64 the second and the third are the first.
inline const std::vector<std::string>& limit_kernels() {
  static const std::vector<std::string> names{"plain", "nontemporal", "movsb"};
  return names;
}

/// Eight floats, at any multiple of 4 bytes.
using Floats [[gnu::vector_size(32), gnu::aligned(4), gnu::may_alias]] = float;

/// `count` floats, a multiple of 16, at `offset` of every buffer.
template <int Ranks>
BENCH_VECTOR_TARGET inline void limit_plain(float* const* buffers, std::size_t begin, std::size_t end) {
  for (std::size_t i = begin; i < end; i += 16) {
    Floats low = *reinterpret_cast<const Floats*>(buffers[0] + i);
    Floats high = *reinterpret_cast<const Floats*>(buffers[0] + i + 8);
    for (int rank = 1; rank < Ranks; ++rank) {
      low += *reinterpret_cast<const Floats*>(buffers[rank] + i);
      high += *reinterpret_cast<const Floats*>(buffers[rank] + i + 8);
    }
    for (int rank = 0; rank < Ranks; ++rank) {
      *reinterpret_cast<Floats*>(buffers[rank] + i) = low;
      *reinterpret_cast<Floats*>(buffers[rank] + i + 8) = high;
    }
  }
}

/// The same with stores that pass the caches by.
template <int Ranks>
BENCH_VECTOR_TARGET inline void limit_nontemporal(float* const* buffers, std::size_t begin, std::size_t end) {
#if defined(__x86_64__)
  for (std::size_t i = begin; i < end; i += 16) {
    __m256 low = _mm256_loadu_ps(buffers[0] + i);
    __m256 high = _mm256_loadu_ps(buffers[0] + i + 8);
    for (int rank = 1; rank < Ranks; ++rank) {
      low = _mm256_add_ps(low, _mm256_loadu_ps(buffers[rank] + i));
      high = _mm256_add_ps(high, _mm256_loadu_ps(buffers[rank] + i + 8));
    }
    for (int rank = 0; rank < Ranks; ++rank) {
      _mm256_stream_ps(buffers[rank] + i, low);
      _mm256_stream_ps(buffers[rank] + i + 8, high);
    }
  }
  _mm_sfence();
#else
  limit_plain<Ranks>(buffers, begin, end);
#endif
}

/// A block is summed in the first-level cache and copied from there by the processor's own copy instruction.
template <int Ranks>
BENCH_VECTOR_TARGET inline void limit_movsb(float* const* buffers, std::size_t begin, std::size_t end) {
#if defined(__x86_64__)
  constexpr std::size_t block = 2048;
  alignas(64) float sums[block];
  for (std::size_t at = begin; at < end; at += block) {
    const std::size_t count = block < end - at ? block : end - at;
    for (std::size_t i = 0; i < count; i += 8) {
      Floats sum = *reinterpret_cast<const Floats*>(buffers[0] + at + i);
      for (int rank = 1; rank < Ranks; ++rank) {
        sum += *reinterpret_cast<const Floats*>(buffers[rank] + at + i);
      }
      *reinterpret_cast<Floats*>(sums + i) = sum;
    }
    for (int rank = 0; rank < Ranks; ++rank) {
      const void* from = sums;
      void* to = buffers[rank] + at;
      std::size_t bytes = count * sizeof(float);
      asm volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(bytes) : : "memory");
    }
  }
#else
  limit_plain<Ranks>(buffers, begin, end);
#endif
}

/// Rank `rank`'s share of an all-reduce of `bytes` bytes, a multiple of 64 for each of 2 or 4 ranks.
/// @throws std::runtime_error for another number of ranks
inline void limit_share(const std::string& kernel, float* const* buffers, std::size_t bytes, int rank, int ranks) {
  const std::size_t length = bytes / sizeof(float) / static_cast<std::size_t>(ranks);
  const std::size_t begin = length * static_cast<std::size_t>(rank);
  const auto run = [&](auto plain, auto nontemporal, auto movsb) {
    (kernel == "plain" ? plain : kernel == "nontemporal" ? nontemporal : movsb)(buffers, begin, begin + length);
  };
  if (ranks == 2) {
    run(limit_plain<2>, limit_nontemporal<2>, limit_movsb<2>);
  } else if (ranks == 4) {
    run(limit_plain<4>, limit_nontemporal<4>, limit_movsb<4>);
  } else {
    throw std::runtime_error("the limit is measured with 2 and 4 ranks");
  }
}

/// Whether this processor runs the kernels.
inline bool has_limit() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("avx2") != 0;
#else
  return true;
#endif
}

/// All ranks' parts of an allocation, of which this process knows its own: they follow each other in one mapping.
/// @throws std::runtime_error where it is not so
inline std::vector<std::byte*> parts_of(std::byte* own, int rank, int ranks) {
  std::FILE* file = std::fopen("/proc/self/maps", "re");
  if (file == nullptr) {
    throw std::runtime_error("cannot read /proc/self/maps");
  }
  const auto address = reinterpret_cast<unsigned long long>(own);
  unsigned long long base = 0, size = 0, inode_of_own = 0;
  for (int pass = 0; pass < 2; ++pass) {  // first which memory it is, then how long
    std::rewind(file);
    unsigned long long begin = 0, end = 0, offset = 0, inode = 0;
    for (char line[512]; std::fgets(line, sizeof line, file) != nullptr;) {
      if (std::sscanf(line, "%llx-%llx %*s %llx %*s %llu", &begin, &end, &offset, &inode) != 4) {
        continue;
      }
      if (pass == 0 && begin <= address && address < end) {
        inode_of_own = inode;
        base = begin - offset;
      } else if (pass == 1 && inode == inode_of_own && begin - offset == base) {
        size = size < end - base ? end - base : size;
      }
    }
  }
  std::fclose(file);
  const unsigned long long stride = size / static_cast<unsigned long long>(ranks);
  if (address != base + stride * static_cast<unsigned long long>(rank)) {
    throw std::runtime_error("the ranks' parts of the arena are not where the limit looks for them");
  }
  std::vector<std::byte*> parts;
  for (int of = 0; of < ranks; ++of) {
    parts.push_back(reinterpret_cast<std::byte*>(base + stride * static_cast<unsigned long long>(of)));
  }
  return parts;
}

}  // namespace bench
