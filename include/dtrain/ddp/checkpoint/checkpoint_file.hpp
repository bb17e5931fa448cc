#pragma once
/// @file
/// Checkpoint file: writes tensors to it and reads them back, in one process.

#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "dtrain/core/config.hpp"
#include "dtrain/core/crypto/sha256.hpp"
#include "dtrain/core/process/descriptor.hpp"
#include "dtrain/ddp/agreement/model_signature.hpp"
#include "dtrain/ddp/checkpoint/atomic_file.hpp"
#include "dtrain/ddp/checkpoint/checkpoint_header.hpp"
#include "dtrain/ddp/checkpoint/named_tensor.hpp"
#include "dtrain/ddp/checkpoint/tensor_access.hpp"

namespace DTRAIN_NAMESPACE::ddp {

/// Writes the tensors' present values to `file`, which the caller commits. Blocking: the file system.
/// @throws Error (the system's code) naming the file; as tensor_signatures, checkpoint_header, `access`
template <class Access = HostTensorAccess>
void write_checkpoint(AtomicFile& file, std::span<const NamedTensor> tensors, Access access = {}) {
  static_assert(std::endian::native == std::endian::little, "elements are written as they lie in memory");
  Sha256 digest;
  const auto append = [&](std::span<const std::byte> bytes) {
    digest.update(bytes);
    file.write(bytes);
  };
  append(checkpoint_header(tensor_signatures(tensors, Access::takes_device_memory)));
  for (const NamedTensor& tensor : tensors) {
    append(access.fetch(tensor.value));
  }
  const Sha256Digest sum = digest.digest();
  file.write(sum);
}

/// Writes the tensors' present values to `path`. If it is interrupted, `path` has these or its former content, whole.
/// Blocking: the file system. @throws as AtomicFile, write_checkpoint
template <class Access = HostTensorAccess>
void write_checkpoint_file(const std::string& path, std::span<const NamedTensor> tensors, Access access = {}) {
  AtomicFile file(path);
  write_checkpoint(file, tensors, access);
  file.commit();
}

namespace detail {

/// Reader of a checkpoint file with untrusted content.
class CheckpointReader {
 public:
  /// Opens `path`; converts to false if there is no file. @throws Error (the system's code) naming the file
  explicit CheckpointReader(std::string path);

  explicit operator bool() const noexcept { return static_cast<bool>(descriptor_); }

  /// Reads the list of tensors, and checks that the file's length matches it. @throws Error (protocol)
  std::vector<ParameterSignature> read_list();

  /// @throws Error (protocol) unless the file's last bytes are the digest of the others
  void check_digest();

  template <class Access>
  void read_elements(std::span<const NamedTensor> tensors, Access& access) {
    std::uint64_t offset = first_element_;
    for (const NamedTensor& tensor : tensors) {
      read(offset, access.place(tensor.value));
      access.put(tensor.value);
      offset += tensor.value.bytes();
    }
  }

  /// Reads bytes of the elements. Requires read_list. @param offset from the first tensor's first element; in range
  void read_bytes(std::uint64_t offset, std::span<std::byte> target) const { read(first_element_ + offset, target); }

  [[noreturn]] void refuse(const std::string& what) const;

 private:
  void read(std::uint64_t offset, std::span<std::byte> target) const;

  [[noreturn]] void cut() const;

  [[noreturn]] void fail_reading(int number) const;

  std::string path_;
  Descriptor descriptor_;
  std::uint64_t size_ = 0;
  std::uint64_t first_element_ = 0;
};

/// The first difference of the file's tensors to the program's, as a sentence's second half; nullopt if none.
std::optional<std::string> difference_to_file(std::span<const ParameterSignature> file,
                                              std::span<const ParameterSignature> program);

/// A reader of `path`, whose tensors are these; false if there is no file. @throws as read_checkpoint_file
CheckpointReader open_checkpoint(const std::string& path, std::span<const NamedTensor> tensors, bool on_devices);

}  // namespace detail

/// Reads the tensors' values from `path`. Blocking: the file system. @returns false if there is no file
/// @throws Error (protocol) if it is no checkpoint, is damaged or has other tensors: values are unchanged; (the
/// system's code)
template <class Access = HostTensorAccess>
bool read_checkpoint_file(const std::string& path, std::span<const NamedTensor> tensors, Access access = {}) {
  detail::CheckpointReader reader = detail::open_checkpoint(path, tensors, Access::takes_device_memory);
  if (!reader) return false;
  reader.read_elements(tensors, access);
  return true;
}

}  // namespace DTRAIN_NAMESPACE::ddp

#if DTRAIN_DEFINITIONS
#include "dtrain/ddp/checkpoint/checkpoint_file_definitions.hpp"
#endif
