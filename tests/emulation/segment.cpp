/// @file
/// Segments as memfds, which other processes open below /proc: nothing is left behind, whoever dies when.

#include "segment.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

namespace emulation {
namespace {

struct NamedSegment {
  std::array<char, 16> magic;
  std::int32_t process;
  std::int32_t descriptor;
  std::uint64_t token;
};
static_assert(sizeof(NamedSegment) <= sizeof(ncclUniqueId));
constexpr std::array<char, 16> segment_magic{"dtrain emulated"};

bool name_of(const ncclUniqueId& id, NamedSegment& named) noexcept {
  std::memcpy(&named, &id, sizeof named);
  return named.magic == segment_magic;
}

Segment* map(int descriptor) noexcept {
  void* const memory = ::mmap(nullptr, sizeof(Segment), PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  return memory == MAP_FAILED ? nullptr : static_cast<Segment*>(memory);
}

}  // namespace

bool make_segment(ncclUniqueId& id) noexcept {
  NamedSegment named{segment_magic, ::getpid(), ::memfd_create("emulated-nccl", MFD_CLOEXEC), 0};
  if (named.descriptor < 0) return false;
  Segment* segment = nullptr;
  if (::getrandom(&named.token, sizeof named.token, 0) == sizeof named.token &&
      ::ftruncate(named.descriptor, sizeof(Segment)) == 0) {
    segment = map(named.descriptor);
  }
  if (segment == nullptr) {
    ::close(named.descriptor);
    return false;
  }
  segment->token.store(named.token);
  unmap_segment(segment);
  std::memset(&id, 0, sizeof id);
  std::memcpy(&id, &named, sizeof named);
  return true;
}

Segment* map_segment(const ncclUniqueId& id) noexcept {
  NamedSegment named{};
  if (!name_of(id, named)) return nullptr;
  std::array<char, 64> path{};
  std::snprintf(path.data(), path.size(), "/proc/%d/fd/%d", named.process, named.descriptor);
  const int descriptor = ::open(path.data(), O_RDWR | O_CLOEXEC);
  if (descriptor < 0) return nullptr;
  const bool is_whole = ::lseek(descriptor, 0, SEEK_END) == static_cast<off_t>(sizeof(Segment));
  Segment* segment = is_whole ? map(descriptor) : nullptr;
  ::close(descriptor);
  if (segment != nullptr && segment->token.load() != named.token) {
    unmap_segment(segment);
    segment = nullptr;
  }
  return segment;
}

void unmap_segment(Segment* segment) noexcept {
  ::munmap(segment, sizeof(Segment));
}

void close_segment(const ncclUniqueId& id) noexcept {
  NamedSegment named{};
  if (!name_of(id, named) || named.process != ::getpid()) return;
  // The segment's own answer who closes: each rank of the process comes here.
  Segment* const segment = map_segment(id);
  if (segment == nullptr) return;
  std::uint64_t open = named.token;
  // Not by close(): ThreadSanitizer would see no order between it and the threads that used the descriptor.
  if (segment->token.compare_exchange_strong(open, 0)) ::syscall(SYS_close, named.descriptor);
  unmap_segment(segment);
}

bool has_ended(int process) noexcept {
  const auto descriptor = static_cast<int>(::syscall(SYS_pidfd_open, process, 0));
  if (descriptor < 0) return errno == ESRCH;
  pollfd ended{descriptor, POLLIN, 0};
  const bool has = ::poll(&ended, 1, 0) == 1;
  ::syscall(SYS_close, descriptor);  // as in close_segment
  return has;
}

}  // namespace emulation
