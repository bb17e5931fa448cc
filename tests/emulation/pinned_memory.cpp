/// @file
/// The ranges of pinned memory as a list that is replaced, never changed: reading it orders no threads.

#include "pinned_memory.hpp"

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <vector>

#include "emulation.hpp"

namespace emulation {
namespace {

struct Range {
  const std::byte* begin;
  std::size_t bytes;
  bool is_allocated;
};

// Old lists stay, because somebody may be reading them: they are few and short.
struct Ranges {
  std::vector<Range> list;
  Ranges* older = nullptr;
};

std::atomic<Ranges*> newest{nullptr};
std::mutex& change_mutex() {
  static std::mutex* const only = new std::mutex;
  return *only;
}

template <class Change>
bool changed(Change change) noexcept {
  const std::lock_guard lock(change_mutex());
  Ranges* const older = newest.load(std::memory_order_relaxed);
  auto* const newer = new Ranges{older == nullptr ? std::vector<Range>{} : older->list, older};
  if (!change(newer->list)) {
    delete newer;
    return false;
  }
  newest.store(newer, std::memory_order_release);
  return true;
}

bool add(void* pointer, std::size_t bytes, bool is_allocated) noexcept {
  const auto* const begin = static_cast<const std::byte*>(pointer);
  return changed([&](std::vector<Range>& list) {
    for (const Range& range : list) {
      if (begin < range.begin + range.bytes && range.begin < begin + bytes) return false;
    }
    list.push_back({begin, bytes, is_allocated});
    return true;
  });
}

bool remove(const void* pointer, bool is_allocated) noexcept {
  return changed([&](std::vector<Range>& list) {
    for (auto range = list.begin(); range != list.end(); ++range) {
      if (range->begin != pointer || range->is_allocated != is_allocated) continue;
      list.erase(range);
      return true;
    }
    return false;
  });
}

}  // namespace

void* allocate_pinned_memory(std::size_t bytes) noexcept {
  constexpr std::size_t page = 4096;
  const std::size_t whole = bytes == 0 ? page : (bytes + page - 1) / page * page;
  void* const memory = std::aligned_alloc(page, whole);
  if (memory == nullptr) return nullptr;
  std::memset(memory, 0, whole);
  add(memory, bytes == 0 ? 1 : bytes, true);
  return memory;
}

bool free_pinned_memory(void* pointer) noexcept {
  if (!remove(pointer, true)) return false;
  std::free(pointer);
  return true;
}

bool register_pinned_memory(void* pointer, std::size_t bytes) noexcept {
  return add(pointer, bytes, false);
}
bool unregister_pinned_memory(void* pointer) noexcept {
  return remove(pointer, false);
}

bool is_pinned(const void* pointer) noexcept {
  const Ranges* const ranges = newest.load(std::memory_order_acquire);
  if (ranges == nullptr) return false;
  const auto* const address = static_cast<const std::byte*>(pointer);
  for (const Range& range : ranges->list) {
    if (address >= range.begin && address < range.begin + range.bytes) return true;
  }
  return false;
}

}  // namespace emulation
