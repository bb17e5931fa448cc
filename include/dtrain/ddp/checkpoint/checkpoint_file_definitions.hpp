#pragma once
/// @file
/// Definitions of the reader of checkpoint files.

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "dtrain/core/config.hpp"
#include "dtrain/core/crypto/sha256.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/process/descriptor.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/core/text/sanitize.hpp"
#include "dtrain/ddp/agreement/model_difference.hpp"
#include "dtrain/ddp/checkpoint/atomic_file.hpp"
#include "dtrain/ddp/checkpoint/checkpoint_file.hpp"
#include "dtrain/ddp/checkpoint/checkpoint_header.hpp"

namespace DTRAIN_NAMESPACE::ddp::detail {

DTRAIN_DEFINED CheckpointReader::CheckpointReader(std::string path) : path_(std::move(path)) {
  require_file_name(path_);
  // O_NONBLOCK: the name may be a pipe's.
  descriptor_ = Descriptor(::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!descriptor_ && errno != ENOENT) fail_reading(errno);
  struct stat status {};
  if (descriptor_ && ::fstat(descriptor_.get(), &status) != 0) fail_reading(errno);
  if (descriptor_ && !S_ISREG(status.st_mode)) refuse("it is no regular file");
  size_ = static_cast<std::uint64_t>(status.st_size);
}

DTRAIN_DEFINED std::vector<ParameterSignature> CheckpointReader::read_list() {
  std::array<std::byte, checkpoint_preamble_bytes> preamble{};
  read(0, std::span(preamble).first(static_cast<std::size_t>(std::min<std::uint64_t>(size_, preamble.size()))));
  const CheckpointPreamble parsed = parse_checkpoint_preamble(preamble);
  if (!parsed.is_checkpoint) refuse("it is no checkpoint of dtrain's");
  if (!parsed.is_this_version)
    refuse("another version of dtrain has written it, in a format that this one cannot read");
  constexpr std::uint64_t around = checkpoint_preamble_bytes + checkpoint_digest_bytes;
  if (size_ < around || parsed.list_bytes > size_ - around || parsed.list_bytes > max_checkpoint_list_bytes) cut();
  std::vector<std::byte> list(parsed.list_bytes);
  read(preamble.size(), list);
  std::optional<std::vector<ParameterSignature>> tensors = parse_checkpoint_list(list);
  if (!tensors) refuse("its list of tensors is damaged");
  first_element_ = preamble.size() + list.size();
  const std::uint64_t bytes_left = size_ - around - list.size();
  if (element_bytes(*tensors, bytes_left) != bytes_left) cut();
  return *std::move(tensors);
}

DTRAIN_DEFINED void CheckpointReader::check_digest() {
  std::vector<std::byte> buffer(std::size_t{1} << 20);
  Sha256 digest;
  for (std::uint64_t done = 0; done < size_ - checkpoint_digest_bytes;) {
    const std::uint64_t left = size_ - checkpoint_digest_bytes - done;
    const auto chunk = std::span(buffer).first(static_cast<std::size_t>(std::min<std::uint64_t>(left, buffer.size())));
    read(done, chunk);
    digest.update(chunk);
    done += chunk.size();
  }
  Sha256Digest written;
  read(size_ - checkpoint_digest_bytes, written);
  if (written != digest.digest()) refuse("its content does not have the digest that stands at its end");
}

DTRAIN_DEFINED void CheckpointReader::refuse(const std::string& what) const {
  throw_error(Errc::protocol,
              "the checkpoint {} cannot be loaded: {}; name another file, or remove this one to begin anew",
              {sanitize(path_), what});
}

DTRAIN_DEFINED void CheckpointReader::read(std::uint64_t offset, std::span<std::byte> target) const {
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

DTRAIN_DEFINED void CheckpointReader::cut() const {
  refuse(format_text("its length, {} bytes, is not what it says", {size_}));
}

DTRAIN_DEFINED void CheckpointReader::fail_reading(int number) const {
  throw posix_error(number, format_text("reading the checkpoint {} failed", {sanitize(path_)}));
}

DTRAIN_DEFINED std::optional<std::string> difference_to_file(std::span<const ParameterSignature> file,
                                                             std::span<const ParameterSignature> program) {
  const auto shown = [](const ParameterSignature& tensor) { return in_quotes(tensor.name) + ", " + kind(tensor); };
  for (std::size_t i = 0; i < std::min(file.size(), program.size()); ++i) {
    if (file[i] != program[i]) {
      return format_text("its tensor {} is {}, the program's is {}", {i, shown(file[i]), shown(program[i])});
    }
  }
  if (file.size() == program.size()) return std::nullopt;
  return format_text("it has {} tensors, the program has {}", {file.size(), program.size()});
}

DTRAIN_DEFINED CheckpointReader open_checkpoint(const std::string& path, std::span<const NamedTensor> tensors,
                                                bool on_devices) {
  const std::vector<ParameterSignature> wanted = tensor_signatures(tensors, on_devices);
  CheckpointReader reader(path);
  if (!reader) return reader;
  const std::vector<ParameterSignature> found = reader.read_list();
  if (const std::optional<std::string> difference = difference_to_file(found, wanted)) {
    reader.refuse(*difference);
  }
  reader.check_digest();
  return reader;
}

}  // namespace DTRAIN_NAMESPACE::ddp::detail
