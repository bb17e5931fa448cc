#pragma once
/// @file
/// Checkpoint file: its format (list of tensors, elements, SHA-256), and one process's reads and writes of it.

#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <tuple>
#include <utility>
#include <vector>

#include "dtrain/core/config.hpp"
#include "dtrain/core/crypto.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/process/descriptor.hpp"
#include "dtrain/core/serializer.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/ddp/agreement/model_signature.hpp"
#include "dtrain/ddp/checkpoint/atomic_file.hpp"
#include "dtrain/ddp/checkpoint/named_tensor.hpp"

namespace DTRAIN_NAMESPACE::ddp {

/// Format of a checkpoint file. No gaps; all numbers little-endian:
///   checkpoint_magic
///   u32   length of the list, in bytes
///   list  u32 count; of each tensor: u32 length and name, u8 dtype, u8 number of extents, each extent as i64
///   ...   the tensors' elements as they lie in memory, in the order of the list
///   32    SHA-256 of all bytes before it
inline constexpr std::string_view checkpoint_magic = "dtrain checkpoint 1\n";
inline constexpr std::size_t checkpoint_preamble_bytes = checkpoint_magic.size() + 4;
inline constexpr std::size_t checkpoint_digest_bytes = std::tuple_size_v<Sha256Digest>;

/// The longest list that is written or read.
inline constexpr std::size_t max_checkpoint_list_bytes = std::size_t{64} << 20;

inline constexpr std::size_t max_checkpoint_tensors = std::size_t{1} << 20;

/// The tensor that only the checkpoint of a ShardedOptimizer has.
inline constexpr std::string_view shard_id_tensor = "optimizer.shards.id";

/// The bytes before the elements. @throws Error (limit) for a list that a reader would reject
std::vector<std::byte> checkpoint_header(std::vector<ParameterSignature> tensors);

/// The size of all elements in bytes. @returns nullopt if it is more than `most`
std::optional<std::uint64_t> element_bytes(std::span<const ParameterSignature> tensors, std::uint64_t most);

/// Writes the tensors' present values to `path`. If the call is interrupted, `path` has the new or the former content
/// as a whole. Blocking: the file system. @throws as AtomicFile, write_checkpoint
void write_checkpoint_file(const std::string& path, std::span<const NamedTensor> tensors, TensorAccess&& access = {},
                           WritingAttempt attempt = {});

/// Reads the tensors' values from `path`, and gives NamedBytes the file's length. Blocking: the file system. @returns
/// false if there is no file
/// @throws Error (protocol) if it is no checkpoint, is damaged or has other tensors: values are unchanged; (the
/// system's code). Where the folder is also missing, a warning in the log says so
bool read_checkpoint_file(const std::string& path, std::span<const NamedTensor> tensors, TensorAccess&& access = {});

/// Reads the list of a file's tensors, and checks that the file's length matches it. @returns nullopt if there is no
/// file @throws as read_checkpoint_file
std::optional<std::vector<ParameterSignature>> read_checkpoint_list(const std::string& path);

}  // namespace DTRAIN_NAMESPACE::ddp

#if DTRAIN_DEFINITIONS

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "dtrain/core/log.hpp"
#include "dtrain/core/text/sanitize.hpp"

namespace DTRAIN_NAMESPACE::ddp {

namespace detail {

inline void list_fields(Serializer& of, std::vector<ParameterSignature>& tensors) {
  of.list(tensors, 0, max_checkpoint_tensors, [&of](ParameterSignature& tensor) { tensor_fields(of, tensor); });
}

/// Reader of a checkpoint file with untrusted content.
class CheckpointReader {
 public:
  /// Opens `path`; converts to false if there is no file. @throws Error (the system's code) naming the file
  explicit CheckpointReader(std::string path) : path_(std::move(path)) {
    require_file_name(path_);
    // O_NONBLOCK, because the name may be that of a pipe.
    descriptor_ = Descriptor(::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    if (!descriptor_ && errno != ENOENT) fail_reading(errno);
    struct stat status {};
    if (descriptor_ && ::fstat(descriptor_.get(), &status) != 0) fail_reading(errno);
    if (descriptor_ && !S_ISREG(status.st_mode)) refuse("it is no regular file; name another");
    size_ = static_cast<std::uint64_t>(status.st_size);
  }

  explicit operator bool() const noexcept { return static_cast<bool>(descriptor_); }

  /// Reads the list of tensors, and checks that the file's length matches it. @throws Error (protocol)
  std::vector<ParameterSignature> read_list() {
    std::array<std::byte, checkpoint_preamble_bytes> preamble{};
    read(0, std::span(preamble).first(static_cast<std::size_t>(std::min<std::uint64_t>(size_, preamble.size()))));
    const std::string_view text(reinterpret_cast<const char*>(preamble.data()), preamble.size());
    if (!text.starts_with(checkpoint_magic.substr(0, checkpoint_magic.size() - 2))) {
      refuse("it is no checkpoint of dtrain's; name another file");
    }
    if (!text.starts_with(checkpoint_magic)) {
      refuse(
          "another version of dtrain has written it, in a format that this one cannot read; load it with that version, "
          "or name another file");
    }
    std::uint32_t list_bytes = 0;
    Serializer(text.substr(checkpoint_magic.size())).number(list_bytes);
    constexpr std::uint64_t around = checkpoint_preamble_bytes + checkpoint_digest_bytes;
    if (size_ < around || list_bytes > size_ - around || list_bytes > max_checkpoint_list_bytes) cut();
    std::vector<std::byte> list(list_bytes);
    read(preamble.size(), list);
    std::vector<ParameterSignature> tensors;  // memory stays below a small multiple of the list's size
    Serializer reader(list);
    list_fields(reader, tensors);
    if (!reader.finished()) refuse("its list of tensors is damaged; load another checkpoint");
    first_element_ = preamble.size() + list.size();
    const std::uint64_t bytes_left = size_ - around - list.size();
    if (element_bytes(tensors, bytes_left) != bytes_left) cut();
    return tensors;
  }

  /// @throws Error (protocol) unless the file's last bytes are the digest of the others
  void check_digest() {
    std::vector<std::byte> buffer(std::size_t{1} << 20);
    Sha256 digest;
    for (std::uint64_t done = 0; done < size_ - checkpoint_digest_bytes;) {
      const std::uint64_t left = size_ - checkpoint_digest_bytes - done;
      const auto chunk =
          std::span(buffer).first(static_cast<std::size_t>(std::min<std::uint64_t>(left, buffer.size())));
      read(done, chunk);
      digest.update(chunk);
      done += chunk.size();
    }
    Sha256Digest written;
    read(size_ - checkpoint_digest_bytes, written);
    if (written != digest.digest()) {
      refuse("its content does not have the digest that stands at its end: it is damaged; load another checkpoint");
    }
  }

  /// Reads bytes of the elements. Requires read_list. @param offset from the first tensor's first element; in range
  void read_bytes(std::uint64_t offset, std::span<std::byte> target) const { read(first_element_ + offset, target); }

  /// @param what the reason and the remedy. A remedy never is to remove the file: it may be a good one that is copied,
  /// renamed or replaced meanwhile, or another program's.
  [[noreturn]] void refuse(const std::string& what) const {
    throw_error(Errc::protocol, "the checkpoint {} cannot be loaded: {}", {sanitize(path_), what});
  }

 private:
  void read(std::uint64_t offset, std::span<std::byte> target) const {
    while (!target.empty()) {
      const ssize_t got = ::pread(descriptor_.get(), target.data(), target.size(), static_cast<off_t>(offset));
      if (got == 0) cut();  // the file has become shorter
      if (got < 0 && errno != EINTR) fail_reading(errno);
      if (got > 0) {
        target = target.subspan(static_cast<std::size_t>(got));
        offset += static_cast<std::uint64_t>(got);
      }
    }
  }

  [[noreturn]] void cut() const {
    refuse(
        format_text("its length, {} bytes, is not what it says; if it is still being copied, load it again when it "
                    "is whole, else load another checkpoint",
                    {size_}));
  }

  [[noreturn]] void fail_reading(int number) const {
    throw posix_error(number, format_text("reading the checkpoint {} failed", {sanitize(path_)}),
                      number == ESTALE ? "another process has replaced the file meanwhile; load it again" : "");
  }

  std::string path_;
  Descriptor descriptor_;
  std::uint64_t size_ = 0;
  std::uint64_t first_element_ = 0;
};

/// Runs `read()`, which opens a file by its name, and runs it once more if the file is stale: on a network file system
/// another host has replaced it, and the name is that of the new file.
template <class Read>
auto read_past_stale(Read read) {
  try {
    return read();
  } catch (const Error& error) {
    if (error.code() != std::error_code(ESTALE, std::generic_category())) throw;
  }
  return read();
}

/// Without a folder, `path` is not the name of a first start: a later save would fail.
inline void warn_of_missing_folder(const std::string& path) {
  const std::string file = behind_link(path);
  const std::string folder = file.substr(0, file.rfind('/') + 1);
  if (folder.empty() || ::access(folder.c_str(), F_OK) == 0 || errno != ENOENT) return;
  log(LogLevel::warning, format_text("there is no checkpoint {} to load, nor its folder {}; correct the name, or make "
                                     "the folder before the checkpoint is saved",
                                     {sanitize(path), sanitize(folder)}));
}

/// The first difference of the file's tensors to the program's, as a sentence's second half; nullopt if none.
inline std::optional<std::string> difference_to_file(std::span<const ParameterSignature> file,
                                                     std::span<const ParameterSignature> program) {
  const auto shown = [](const ParameterSignature& tensor) { return in_quotes(tensor.name) + ", " + kind(tensor); };
  const auto is_sharded = [](std::span<const ParameterSignature> tensors) {
    return std::any_of(tensors.begin(), tensors.end(),
                       [](const ParameterSignature& tensor) { return tensor.name == shard_id_tensor; });
  };
  if (is_sharded(file) != is_sharded(program)) {
    return is_sharded(file) ? "it was saved with a ShardedOptimizer; load it with one, as the last argument of "
                              "load_checkpoint, or name another file"
                            : "it was saved without a ShardedOptimizer; load it without one, or name another file";
  }
  for (std::size_t i = 0; i < std::min(file.size(), program.size()); ++i) {
    if (file[i] != program[i]) {
      return format_text(
          "its tensor {} is {}, the program's is {}; load it into what it was saved from, or name another file",
          {i, shown(file[i]), shown(program[i])});
    }
  }
  if (file.size() == program.size()) return std::nullopt;
  return format_text("it has {} tensors, the program has {}; load it into what it was saved from, or name another file",
                     {file.size(), program.size()});
}

}  // namespace detail

DTRAIN_DEFINED std::vector<std::byte> checkpoint_header(std::vector<ParameterSignature> tensors) {
  if (tensors.size() > max_checkpoint_tensors) {
    throw_error(Errc::limit,
                "a checkpoint of {} tensors was to be written; at most {} are possible, so put several into one",
                {tensors.size(), max_checkpoint_tensors});
  }
  Serializer list;
  detail::list_fields(list, tensors);
  if (list.view().size() > max_checkpoint_list_bytes) {
    throw_error(Errc::limit,
                "the names and shapes of {} tensors take {} bytes in a checkpoint; at most {} are possible",
                {tensors.size(), list.view().size(), max_checkpoint_list_bytes});
  }
  Serializer header;
  auto list_bytes = static_cast<std::uint32_t>(list.view().size());
  header.constant(checkpoint_magic);
  header.number(list_bytes);
  header.constant(list.characters());
  return header.take();
}

DTRAIN_DEFINED std::optional<std::uint64_t> element_bytes(std::span<const ParameterSignature> tensors,
                                                          std::uint64_t most) {
  std::uint64_t sum = 0;
  for (const ParameterSignature& tensor : tensors) {
    const std::uint64_t bytes = BufferView{nullptr, tensor.shape.element_count(), tensor.dtype, {}}.bytes();
    if (bytes > most - sum) return std::nullopt;
    sum += bytes;
  }
  return sum;
}

/// Writes the tensors' present values to `file`, which the caller commits. Blocking: the file system.
/// @throws Error (the system's code) naming the file; as tensor_signatures, checkpoint_header, `access`
inline void write_checkpoint(AtomicFile& file, std::span<const NamedTensor> tensors, TensorAccess&& access = {}) {
  static_assert(std::endian::native == std::endian::little, "elements are written as they lie in memory");
  Sha256 digest;
  const auto append = [&](std::span<const std::byte> bytes) {
    digest.update(bytes);
    file.write(bytes);
  };
  append(checkpoint_header(tensor_signatures(tensors, access.takes_device_memory())));
  for (const NamedTensor& tensor : tensors) {
    append(access.fetch(tensor.present()));
  }
  const Sha256Digest sum = digest.digest();
  file.write(sum);
}

DTRAIN_DEFINED void write_checkpoint_file(const std::string& path, std::span<const NamedTensor> tensors,
                                          TensorAccess&& access, WritingAttempt attempt) {
  AtomicFile file(path, std::move(attempt));
  write_checkpoint(file, tensors, std::move(access));
  file.commit();
}

/// As read_checkpoint_file, for a file that no other process replaces.
inline bool read_tensors(const std::string& path, std::span<const NamedTensor> tensors, TensorAccess& access) {
  std::vector<ParameterSignature> wanted = tensor_signatures(tensors, access.takes_device_memory());
  detail::CheckpointReader reader(path);
  if (!reader) return false;
  const std::vector<ParameterSignature> found = reader.read_list();
  for (std::size_t i = 0; i < std::min(found.size(), wanted.size()); ++i) {
    if (tensors[i].bytes == nullptr || found[i].dtype != DType::u8 || found[i].shape.extents().size() != 1) continue;
    if (found[i].shape.element_count() > max_named_bytes) {
      reader.refuse(format_text("its tensor {} has {} bytes, and at most {} are read; name another file",
                                {in_quotes(found[i].name), found[i].shape.element_count(), max_named_bytes}));
    }
    wanted[i].shape = found[i].shape;
  }
  if (const std::optional<std::string> difference = detail::difference_to_file(found, wanted)) {
    reader.refuse(*difference);
  }
  reader.check_digest();
  std::vector<std::string> contents;  // allocated before a value is written
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].bytes != nullptr) contents.emplace_back(wanted[i].shape.element_count(), '\0');
  }
  std::uint64_t offset = 0;
  auto content = contents.begin();
  for (const NamedTensor& tensor : tensors) {
    if (tensor.bytes != nullptr) *tensor.bytes = std::move(*content++);
    const TensorView value = tensor.present();
    reader.read_bytes(offset, access.place(value));
    access.put(value);
    offset += value.bytes();
  }
  return true;
}

DTRAIN_DEFINED bool read_checkpoint_file(const std::string& path, std::span<const NamedTensor> tensors,
                                         TensorAccess&& access) {
  const bool is_there = detail::read_past_stale([&] { return read_tensors(path, tensors, access); });
  if (!is_there) detail::warn_of_missing_folder(path);
  return is_there;
}

DTRAIN_DEFINED std::optional<std::vector<ParameterSignature>> read_checkpoint_list(const std::string& path) {
  return detail::read_past_stale([&]() -> std::optional<std::vector<ParameterSignature>> {
    detail::CheckpointReader reader(path);
    if (reader) return reader.read_list();
    detail::warn_of_missing_folder(path);
    return std::nullopt;
  });
}

}  // namespace DTRAIN_NAMESPACE::ddp

#endif  // DTRAIN_DEFINITIONS
