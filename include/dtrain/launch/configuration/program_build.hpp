#pragma once
/// @file
/// Program build: name and build id (or digest) of this process's executable.

#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <span>
#include <string>
#include <string_view>

#include "dtrain/core/crypto/sha256.hpp"
#include "dtrain/core/process/descriptor.hpp"
#include "dtrain/core/text/format_text.hpp"

namespace DTRAIN_NAMESPACE::launch {

/// The build id in an executable's ELF notes (each aligned to 4 bytes), in hexadecimal; empty if there is none. Pure.
inline std::string build_id_in(std::span<const std::byte> notes) {
  constexpr std::string_view owner("GNU\0", 4);
  constexpr std::size_t longest = 64;
  while (notes.size() >= sizeof(ElfW(Nhdr))) {
    ElfW(Nhdr) note;
    std::memcpy(&note, notes.data(), sizeof note);
    notes = notes.subspan(sizeof note);
    const std::size_t name_bytes = (std::size_t{note.n_namesz} + 3) / 4 * 4;
    const std::size_t text_bytes = (std::size_t{note.n_descsz} + 3) / 4 * 4;
    if (name_bytes > notes.size() || text_bytes > notes.size() - name_bytes) {
      return {};
    }
    const bool is_gnu = note.n_namesz == owner.size() && std::memcmp(notes.data(), owner.data(), owner.size()) == 0;
    if (is_gnu && note.n_type == NT_GNU_BUILD_ID && note.n_descsz <= longest) {
      return hex(notes.subspan(name_bytes, note.n_descsz));
    }
    notes = notes.subspan(name_bytes + text_bytes);
  }
  return {};
}

namespace detail {

/// Callback of dl_iterate_phdr. Stores the build id of the first object, which is the program, also under valgrind or
/// when ld.so was started with the program as argument.
inline int find_build_id(::dl_phdr_info* object, std::size_t, void* found) {
  for (std::size_t i = 0; i < object->dlpi_phnum; ++i) {
    const ElfW(Phdr)& segment = object->dlpi_phdr[i];
    std::string& id = *static_cast<std::string*>(found);
    if (segment.p_type == PT_NOTE && id.empty()) {
      const auto* const begin = reinterpret_cast<const std::byte*>(object->dlpi_addr + segment.p_vaddr);
      id = build_id_in(std::span(begin, segment.p_memsz));
    }
  }
  return 1;  // no further object
}

/// The SHA-256 of a file's first 64 MiB; empty if the file cannot be read.
inline std::string digest_of(const char* path) {
  constexpr std::size_t most = std::size_t{64} << 20;
  const Descriptor file(::open(path, O_RDONLY | O_CLOEXEC));
  std::array<std::byte, 65536> piece{};
  Sha256 digest;
  std::size_t read = 0;
  while (file && read < most) {
    const ssize_t count = ::read(file.get(), piece.data(), piece.size());
    if (count < 0 && errno == EINTR) {
      continue;
    }
    if (count < 0) {
      return {};
    }
    if (count == 0) {
      break;
    }
    digest.update(std::span(piece).first(static_cast<std::size_t>(count)));
    read += static_cast<std::size_t>(count);
  }
  return file ? hex(digest.digest()) : std::string();
}

}  // namespace detail

/// "build id 5f3a...", else "digest 77c1..." of the file's first 64 MiB; empty if both are unavailable.
/// Blocking: without a build id, it reads the executable.
inline std::string own_build() {
  std::string id;
  ::dl_iterate_phdr(&detail::find_build_id, &id);
  if (!id.empty()) {
    return format_text("build id {}", {id});
  }
  const std::string digest = detail::digest_of("/proc/self/exe");
  return digest.empty() ? digest : format_text("digest {}", {digest});
}

/// The name of the executable's file, without its folder.
inline std::string own_program_name() {
  std::array<char, 4096> path{};
  const ssize_t length = ::readlink("/proc/self/exe", path.data(), path.size());
  const std::string_view whole(path.data(), length > 0 ? static_cast<std::size_t>(length) : 0);
  const std::string_view name = whole.substr(whole.rfind('/') + 1);
  return name.empty() ? "a program" : std::string(name);
}

}  // namespace DTRAIN_NAMESPACE::launch
