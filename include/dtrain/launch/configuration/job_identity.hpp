#pragma once
/// @file
/// Job identity: name, origin and program build by which a store tells a rank's job from others.

#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "dtrain/core/crypto.hpp"
#include "dtrain/core/process/descriptor.hpp"
#include "dtrain/core/process/system_files.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/identity/process_identity.hpp"
#include "dtrain/identity/variables.hpp"
#include "dtrain/launch/process_tree.hpp"
#include "dtrain/rendezvous/membership/origin.hpp"

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
  const std::string path = link_target("/proc/self/exe");
  const std::string name = path.substr(path.rfind('/') + 1);
  return name.empty() ? "a program" : name;
}

/// A process id and its start time, which together distinguish the process from a later one with the same id.
struct Starter {
  std::int64_t process = 0;
  std::uint64_t began = 0;
  std::string name;     ///< "hydra_pmi_proxy"
  std::string command;  ///< its arguments, each followed by a zero byte
};

/// Flag on the command line of a proxy of MPICH's mpiexec.
inline constexpr std::string_view hydra_proxy_flag("--control-port\0", 15);

/// The nearest ancestor without `rank_entry` in its environment; nullopt if /proc cannot be read. Wrapper scripts that
/// a launcher starts for each rank have the entry, their starter does not. Exception: a proxy of MPICH's mpiexec may
/// have it, if another launcher started the proxy as a rank; the proxy is the starter in any case.
/// @param parent of this process; 0: the parent is outside its PID namespace
/// @param rank_entry "PMI_RANK=3"; empty: returns the parent
inline std::optional<Starter> starter_of(const SystemFiles& files, std::int64_t parent, const std::string& rank_entry) {
  constexpr int deepest = 64;
  constexpr std::size_t most_environment = std::size_t{1} << 20;
  std::int64_t process = parent;
  for (int depth = 0; depth < deepest && process > 0; ++depth) {
    const std::string folder = format_text("/proc/{}", {process});
    const auto status = detail::status_of(process, files);
    if (!status) {
      return std::nullopt;
    }
    const std::string environment =
        rank_entry.empty() ? "" : files.text(folder + "/environ", most_environment).value_or("");
    std::string command = files.text(folder + "/cmdline").value_or("");
    if (!has_entry(environment, '\0', rank_entry) || command.find(hydra_proxy_flag) != std::string::npos) {
      return Starter{process, status->began, status->name, std::move(command)};
    }
    process = status->parent;
  }
  return std::nullopt;
}

/// The job's name (empty if it has none), and further properties that distinguish it from other jobs.
struct JobIdentity {
  std::string name;
  rendezvous::Origin origin;
};

/// A job of MPICH's mpiexec has no name that a process can read, but all mpiexec proxies connect to the same address.
/// @param command as in Starter. @returns "hydra=host-a:43789"; nullopt if the command is no such proxy
inline std::optional<std::string> hydra_job(std::string_view command) {
  const std::size_t at = command.find(hydra_proxy_flag);
  const std::string_view rest = at == std::string_view::npos ? "" : command.substr(at + hydra_proxy_flag.size());
  const std::string_view address = rest.substr(0, rest.find('\0'));
  return address.empty() ? std::nullopt : std::optional(format_text("hydra={}", {address}));
}

/// The job's identity from the environment and, if it has several ranks, from the process's program and starter.
/// Blocking: reads files of the kernel.
inline JobIdentity job_identity(const identity::Variables& variables, const identity::ProcessIdentity& identity,
                                const SystemFiles& files = SystemFiles()) {
  JobIdentity job;
  job.name = identity.job.value_or("");
  if (identity.world_size == 1) {
    return job;
  }
  rendezvous::Origin& origin = job.origin;
  origin.is_exact_job = identity.is_exact_job;
  origin.one_starter = identity.one_starter;
  origin.program = own_program_name();
  origin.build = own_build();
  struct ::stat space {};
  origin.process_space = ::stat("/proc/self/ns/pid", &space) == 0 ? space.st_ino : 0;
  // torchrun's agent may have its own RANK, the node's, but it has no run id.
  const std::string own_variable = identity.elastic ? "TORCHELASTIC_RUN_ID" : identity.rank_variable;
  const std::optional<std::string_view> own_value = variables.text(own_variable);
  const std::optional<Starter> starter =
      starter_of(files, ::getppid(), own_value ? format_text("{}={}", {own_variable, *own_value}) : "");
  if (starter) {
    origin.starter = starter->process;
    origin.starter_began = starter->began;
    origin.starter_name = starter->name;
    const std::optional<std::string> hydra =
        identity.is_exact_job || identity.rank_variable != "PMI_RANK" ? std::nullopt : hydra_job(starter->command);
    origin.is_exact_job = identity.is_exact_job || hydra;
    job.name = hydra.value_or(job.name);
  }
  return job;
}

}  // namespace DTRAIN_NAMESPACE::launch
