/// @file
/// One reserved range for all devices and its shadow, handed out in granules; lookups take no lock, because a lock that
/// streams' threads share would be an order between them that ThreadSanitizer believes in.

#include "device_memory.hpp"

#include <sys/mman.h>

#include "api.hpp"
#include "emulation.hpp"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(address, bytes) (static_cast<void>(address), static_cast<void>(bytes))
#define ASAN_UNPOISON_MEMORY_REGION(address, bytes) (static_cast<void>(address), static_cast<void>(bytes))
#endif

namespace emulation {
namespace {

constexpr std::size_t granule = std::size_t{64} << 10;
constexpr std::size_t granules_per_device = 32768;
constexpr std::size_t device_bytes = granule * granules_per_device;
constexpr std::size_t all_granules = granules_per_device * most_devices;
constexpr std::size_t all_bytes = device_bytes * most_devices;

struct Arena {
  std::byte* base = nullptr;
  std::mutex mutex;  // for who allocates and frees only
  std::array<std::size_t, most_devices> next{};
  std::array<std::size_t, most_devices> used{};
  std::array<std::atomic<std::uint32_t>, all_granules> first{};  // of the allocation, plus 1; 0 where there is none
  std::array<std::atomic<std::size_t>, all_granules> bytes{};    // at an allocation's first granule

  Arena() {
    void* const whole = ::mmap(nullptr, 2 * all_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (whole == MAP_FAILED) {
      std::perror("the emulated CUDA runtime: reserving addresses");
      std::abort();
    }
    base = static_cast<std::byte*>(whole);
  }
  std::byte* shadow(std::size_t index) const { return base + all_bytes + index * granule; }
};

Arena& arena() {
  static Arena* const only = new Arena;
  return *only;
}

std::size_t granules_of(std::size_t bytes) {
  return bytes == 0 ? 1 : (bytes + granule - 1) / granule;
}

/// The first of `count` free granules of a device, looked for behind the last allocation, so that what was freed stays
/// unused for long; all_granules where there are none.
std::size_t find_free(const Arena& memory, std::size_t count, std::size_t device) {
  const std::size_t start = device * granules_per_device;
  for (int round = 0; round < 2; ++round) {
    std::size_t run = 0;
    for (std::size_t i = round == 0 ? memory.next[device] : 0; i < granules_per_device; ++i) {
      run = memory.first[start + i].load(std::memory_order_relaxed) == 0 ? run + 1 : 0;
      if (run == count) return start + i + 1 - count;
    }
  }
  return all_granules;
}

}  // namespace

void* allocate_device_memory(std::size_t bytes, int device) noexcept {
  make_context(device);
  Arena& memory = arena();
  const std::size_t count = granules_of(bytes);
  if (count > granules_per_device) return nullptr;
  const auto owner = static_cast<std::size_t>(device);
  const std::lock_guard lock(memory.mutex);
  const std::size_t index = find_free(memory, count, owner);
  if (index == all_granules) return nullptr;
  std::byte* const shadow = memory.shadow(index);
  if (::mprotect(shadow, count * granule, PROT_READ | PROT_WRITE) != 0) return nullptr;
  ASAN_UNPOISON_MEMORY_REGION(shadow, count * granule);
  std::memset(shadow, 0xA5, bytes);  // nobody may count on zeros
  ASAN_POISON_MEMORY_REGION(shadow + bytes, count * granule - bytes);
  memory.bytes[index].store(bytes, std::memory_order_relaxed);
  for (std::size_t i = 0; i < count; ++i)
    memory.first[index + i].store(static_cast<std::uint32_t>(index + 1), std::memory_order_release);
  memory.next[owner] = (index % granules_per_device + count) % granules_per_device;
  memory.used[owner] += bytes;
  return memory.base + index * granule;
}

bool free_device_memory(void* pointer) noexcept {
  if (!is_device_address(pointer)) return false;
  Arena& memory = arena();
  const auto offset = static_cast<std::size_t>(static_cast<std::byte*>(pointer) - memory.base);
  const std::size_t index = offset / granule;
  const std::lock_guard lock(memory.mutex);
  if (offset % granule != 0 || memory.first[index].load(std::memory_order_relaxed) != index + 1) return false;
  const std::size_t bytes = memory.bytes[index].load(std::memory_order_relaxed);
  const std::size_t count = granules_of(bytes);
  std::byte* const shadow = memory.shadow(index);
  // Written, so that ThreadSanitizer reports work that still uses it; then gone, so that later work dies.
  std::memset(shadow, 0xDD, bytes);
  ASAN_POISON_MEMORY_REGION(shadow, count * granule);
  ::madvise(shadow, count * granule, MADV_DONTNEED);
  ::mprotect(shadow, count * granule, PROT_NONE);
  for (std::size_t i = 0; i < count; ++i)
    memory.first[index + i].store(0, std::memory_order_relaxed);
  memory.used[index / granules_per_device] -= bytes;
  return true;
}

bool is_device_address(const void* pointer) noexcept {
  const std::byte* const base = arena().base;
  const auto* const address = static_cast<const std::byte*>(pointer);
  return address >= base && address < base + all_bytes;
}

int device_of(const void* pointer) noexcept {
  const auto offset = static_cast<std::size_t>(static_cast<const std::byte*>(pointer) - arena().base);
  return static_cast<int>(offset / device_bytes);
}

void* shadow_of(const void* pointer, std::size_t bytes) noexcept {
  const Arena& memory = arena();
  const auto offset = static_cast<std::size_t>(static_cast<const std::byte*>(pointer) - memory.base);
  const std::uint32_t first = memory.first[offset / granule].load(std::memory_order_acquire);
  if (first == 0) return nullptr;
  const std::size_t within = offset - std::size_t{first - 1} * granule;
  const std::size_t size = memory.bytes[first - 1].load(std::memory_order_relaxed);
  if (within > size || bytes > size - within) return nullptr;
  return memory.base + all_bytes + offset;
}

std::size_t device_memory_bytes() noexcept {
  return device_bytes;
}

std::size_t allocated_device_bytes(int device) noexcept {
  const std::lock_guard lock(arena().mutex);
  return arena().used[static_cast<std::size_t>(device)];
}
std::size_t allocated_device_bytes() {
  const std::lock_guard lock(arena().mutex);
  std::size_t sum = 0;
  for (const std::size_t bytes : arena().used)
    sum += bytes;
  return sum;
}

void* host_address(const void* pointer) {
  return is_device_address(pointer) ? shadow_of(pointer, 0) : const_cast<void*>(pointer);
}

}  // namespace emulation
