#include "dtrain/backend/shared_memory/segment.hpp"

#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "support/denied_call.hpp"
#include "support/in_child.hpp"
#include "unit/backend/prelude.hpp"

namespace {

using dtrain::available_memory_bytes;
using dtrain::backend::shared_memory::Segment;
using support::error_of;
using support::in_child;
using support::sentence_of;

TEST_CASE("a reserved segment is zeroed, writable and cannot shrink") {
  for (const std::size_t bytes : {std::size_t{4096}, std::size_t{5000}, std::size_t{3} << 20}) {
    const auto segment = Segment::create(bytes, bytes);
    segment->reserve(0, bytes);
    CHECK(std::all_of(segment->base(), segment->base() + bytes, [](std::byte b) { return b == std::byte{0}; }));
    segment->base()[bytes - 1] = std::byte{7};
    CHECK(ftruncate(segment->descriptor(), 0) != 0);
    const auto alignment = bytes >= dtrain::backend::shared_memory::huge_page_bytes ? (std::size_t{2} << 20) : 4096;
    CHECK(reinterpret_cast<std::uintptr_t>(segment->base()) % alignment == 0);
    segment->close_descriptor();
    CHECK(segment->descriptor() == -1);
    CHECK(segment->base()[bytes - 1] == std::byte{7});
  }
}

TEST_CASE("signals that interrupt every reservation of more than 2 MiB do not hold a reservation up") {
  constexpr std::size_t bytes = std::size_t{5} << 20;
  constexpr __u32 populate_write = 23;
  for (const bool has_populate : {true, false}) {
    CAPTURE(has_populate);
    const int ended = in_child([&] {
      static_cast<void>(::alarm(20));
      const auto segment = Segment::create(2 * bytes, 2 * bytes);
      if (!support::deny_call(SYS_fallocate, EINTR, {3, BPF_JGE, (2U << 20) + 1})) return 77;
      if (!has_populate && !support::deny_call(SYS_madvise, EINVAL, {2, BPF_JEQ, populate_write})) return 77;
      segment->reserve(bytes, bytes);
      struct stat now {};
      if (::fstat(segment->descriptor(), &now) != 0) return 1;
      return now.st_blocks * 512 >= static_cast<std::int64_t>(bytes) ? 0 : 2;
    });
    CHECK((ended == 0 || ended == 77));
  }
}

TEST_CASE("the descriptor's memory is the mapping's") {
  const auto first = Segment::create(4096, 4096);
  const auto second = Segment::adopt(dtrain::Descriptor(::dup(first->descriptor())), 4096);
  first->base()[5] = std::byte{9};
  CHECK(second->base()[5] == std::byte{9});
}

TEST_CASE("more memory than there is is refused before any is taken, saying how much there is") {
  const std::size_t asked = std::size_t{1} << 50;
  CHECK_ERROR(Segment::create(asked, asked), Errc::out_of_memory, std::to_string(asked), "available");
  CHECK(available_memory_bytes() > 0);
  CHECK(available_memory_bytes() < asked);
}

TEST_CASE("a memory that is not sealed, or of another size, is not adopted") {
  const int unsealed = ::memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  REQUIRE(::ftruncate(unsealed, 4096) == 0);
  CHECK_ERROR(Segment::adopt(dtrain::Descriptor(unsealed), 4096), Errc::protocol);
  const auto sealed = Segment::create(4096, 4096);
  CHECK_ERROR(Segment::adopt(dtrain::Descriptor(::dup(sealed->descriptor())), 8192), Errc::protocol);
}

/// Whether something is mapped there.
bool is_mapped(const std::byte* page) {
  unsigned char resident = 0;
  return ::mincore(const_cast<std::byte*>(page), 4096, &resident) == 0;
}

/// How many mappings of this process are of a memfd.
int mapped_memfds() {
  std::ifstream maps("/proc/self/maps");
  int count = 0;
  for (std::string line; std::getline(maps, line);)
    count += line.find("/memfd:") != std::string::npos ? 1 : 0;
  return count;
}

TEST_CASE("a process that is forked does not have the memory, and its copy of the owner unmaps nothing") {
  for (const std::size_t bytes : {std::size_t{4096}, std::size_t{3} << 20}) {
    auto made = Segment::create(bytes, bytes);
    auto adopted = Segment::adopt(dtrain::Descriptor(::dup(made->descriptor())), bytes);
    for (auto* const segment : {&made, &adopted}) {
      std::byte* const base = (*segment)->base();
      CHECK(is_mapped(base + bytes - 4096));
      CHECK(mapped_memfds() > 0);
      CHECK(in_child(mapped_memfds) == 0);
      CHECK(in_child([&] {
              // Where this is refused, a sanitizer has mapped memory of its own there.
              static_cast<void>(
                  ::mmap(base, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0));
              segment->reset();
              return is_mapped(base) ? 0 : 1;
            }) == 0);
    }
  }
}

TEST_CASE("a limit of the process that keeps a memory from being had is named, and ends nothing") {
  const std::size_t bytes = std::size_t{1} << 20;
  CHECK(in_child([&] {
          const rlimit small{65536, RLIM_INFINITY};
          if (::setrlimit(RLIMIT_FSIZE, &small) != 0) return 1;
          return sentence_of([&] { Segment::create(bytes, bytes); }) ==
                         "sizing a shared memory of 1048576 bytes: File too large; files that this process writes are "
                         "limited to 65536 bytes (ulimit -f)"
                     ? 0
                     : 2;
        }) == 0);
  CHECK(in_child([&] {
          std::size_t pages = 0;
          std::ifstream("/proc/self/statm") >> pages;
          const rlimit small{pages * 4096 + bytes / 2, RLIM_INFINITY};
          if (pages == 0 || ::setrlimit(RLIMIT_AS, &small) != 0) return 1;
          return sentence_of([&] { Segment::create(64 * bytes, 64 * bytes); }) ==
                         "finding 67108864 bytes of address space: Cannot allocate memory; the address space of this "
                         "process is limited to " +
                             std::to_string(small.rlim_cur) + " bytes (ulimit -v)"
                     ? 0
                     : 2;
        }) == 0);
}

}  // namespace
