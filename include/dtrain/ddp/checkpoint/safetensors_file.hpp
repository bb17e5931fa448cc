#pragma once
/// @file
/// SafetensorsFile: reads a file from anywhere, whose content is not trusted. TensorFiles: the tensors of one file, or
/// of the files that an index names.

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "dtrain/core/config.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/process/descriptor.hpp"
#include "dtrain/ddp/checkpoint/safetensors_header.hpp"

namespace DTRAIN_NAMESPACE::ddp {

/// An open file. Bytes are read by pread: mapped pages would count as this process's memory, and a file that is cut
/// meanwhile would be a signal. Blocking: the file system.
class SafetensorsFile {
 public:
  /// Opens `path`; converts to false if there is no file. @throws Error (the system's code) naming the file
  explicit SafetensorsFile(std::string path);

  explicit operator bool() const noexcept { return static_cast<bool>(descriptor_); }

  /// @throws Error (protocol) for a file that is none, or whose length is not what it says
  void read_header();

  /// The header, after read_header().
  const SafetensorsHeader& header() const noexcept { return header_; }

  /// @throws Error (protocol) if the file has a digest, and other bytes than when it was written. Requires read_header.
  void check_digest() const;

  /// The whole file. @throws Error (protocol) if it is longer than a header
  std::string read_text() const;

  /// Reads bytes of the elements. Requires read_header. @param offset from the first tensor's first element; in range
  void read_bytes(std::uint64_t offset, std::span<std::byte> target) const;

  /// @param what the reason and the remedy. A remedy never is to remove the file: it may be a good one that is copied,
  /// renamed or replaced meanwhile, or another program's.
  [[noreturn]] void refuse(const std::string& what) const;

 private:
  void read(std::uint64_t offset, std::span<std::byte> target) const;
  [[noreturn]] void cut() const;
  [[noreturn]] void fail_reading(int number) const;

  std::string path_;
  Descriptor descriptor_;
  std::uint64_t size_ = 0;
  std::string text_;  ///< the header's
  SafetensorsHeader header_;
};

/// The tensors of one file, or of the files of an index. Not movable.
class TensorFiles {
 public:
  struct Found {
    const FileTensor* tensor = nullptr;
    const SafetensorsFile* file = nullptr;
  };

  /// Opens `path`, and if it is an index, the files of its weight_map, which lie beside it. Converts to false if there
  /// is no file `path`. @param takes_index whether a name that ends in ".index.json" is an index's
  /// @throws as SafetensorsFile
  TensorFiles(const std::string& path, bool takes_index);
  TensorFiles(TensorFiles&&) = delete;
  TensorFiles& operator=(TensorFiles&&) = delete;

  explicit operator bool() const noexcept { return static_cast<bool>(files_.front()); }

  const std::map<std::string_view, Found>& tensors() const noexcept { return tensors_; }

  /// @throws as SafetensorsFile::check_digest
  void check_digests() const;

  /// As SafetensorsFile::refuse, with the name of the file or of the index.
  [[noreturn]] void refuse(const std::string& what) const { files_.front().refuse(what); }

 private:
  void open_index(const std::string& path);

  std::list<SafetensorsFile> files_;  ///< `path` first
  std::map<std::string_view, Found> tensors_;
};

namespace detail {

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

}  // namespace detail

}  // namespace DTRAIN_NAMESPACE::ddp

#if DTRAIN_DEFINITIONS

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <set>
#include <utility>

#include "dtrain/core/crypto.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/core/text/sanitize.hpp"
#include "dtrain/ddp/checkpoint/atomic_file.hpp"
#include "dtrain/identity/formats/json.hpp"

namespace DTRAIN_NAMESPACE::ddp {

DTRAIN_DEFINED SafetensorsFile::SafetensorsFile(std::string path) : path_(std::move(path)) {
  detail::require_file_name(path_);
  // O_NONBLOCK, because the name may be that of a pipe.
  descriptor_ = Descriptor(::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!descriptor_ && errno != ENOENT) fail_reading(errno);
  struct stat status {};
  if (descriptor_ && ::fstat(descriptor_.get(), &status) != 0) fail_reading(errno);
  if (descriptor_ && !S_ISREG(status.st_mode)) refuse("it is no regular file; name another");
  size_ = static_cast<std::uint64_t>(status.st_size);
}

DTRAIN_DEFINED void SafetensorsFile::read_header() {
  std::uint64_t length = 0;
  if (size_ < sizeof(length)) cut();
  const auto preamble = std::as_writable_bytes(std::span(&length, 1));
  read(0, preamble);
  if (std::string_view(reinterpret_cast<const char*>(&length), sizeof(length)) == "dtrain c") {
    refuse(
        "an earlier version of dtrain has written it, in a format of its own; go on with that version, or name another "
        "file");
  }
  if (length > max_header_bytes_read) refuse("it is no safetensors file; name another");
  if (length > size_ - sizeof(length)) cut();
  text_.resize(static_cast<std::size_t>(length));
  read(sizeof(length), std::as_writable_bytes(std::span(text_)));
  header_ = {};
  const std::string reason = parse_safetensors(text_, header_);
  if (!reason.empty()) refuse(reason + "; it is damaged, or no safetensors file: load another");
  if (header_.element_bytes != size_ - sizeof(length) - length) cut();
}

DTRAIN_DEFINED void SafetensorsFile::check_digest() const {
  if (!header_.digest) return;
  const std::uint64_t length = text_.size();
  const bool is_in_place = text_.starts_with(header_before_digest) && header_.digest->size() == 64;
  std::string text = text_;
  if (is_in_place) text.replace(header_before_digest.size(), 64, 64, '0');
  Sha256 digest;
  digest.update(std::as_bytes(std::span(&length, 1))).update(text);
  std::vector<std::byte> buffer(std::size_t{1} << 20);
  for (std::uint64_t done = 0; done < header_.element_bytes;) {
    const std::uint64_t left = header_.element_bytes - done;
    const auto chunk = std::span(buffer).first(static_cast<std::size_t>(std::min<std::uint64_t>(left, buffer.size())));
    read_bytes(done, chunk);
    digest.update(chunk);
    done += chunk.size();
  }
  if (!is_in_place || *header_.digest != hex(digest.digest())) {
    refuse(
        "its content does not have the digest in its metadata: it is damaged, or was written again by a program that "
        "copied the metadata; load another file, or leave dtrain.sha256 out there");
  }
}

DTRAIN_DEFINED std::string SafetensorsFile::read_text() const {
  if (size_ > max_header_bytes_read) refuse("it is longer than any index; name another");
  std::string text(static_cast<std::size_t>(size_), '\0');
  read(0, std::as_writable_bytes(std::span(text)));
  return text;
}

DTRAIN_DEFINED void SafetensorsFile::read_bytes(std::uint64_t offset, std::span<std::byte> target) const {
  read(sizeof(std::uint64_t) + text_.size() + offset, target);
}

DTRAIN_DEFINED void SafetensorsFile::refuse(const std::string& what) const {
  throw_error(Errc::protocol, "the checkpoint {} cannot be loaded: {}", {sanitize(path_), what});
}

DTRAIN_DEFINED void SafetensorsFile::read(std::uint64_t offset, std::span<std::byte> target) const {
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

DTRAIN_DEFINED void SafetensorsFile::cut() const {
  refuse(
      format_text("its length, {} bytes, is not what it says; if it is still being copied, load it again when it "
                  "is whole, else load another checkpoint",
                  {size_}));
}

DTRAIN_DEFINED void SafetensorsFile::fail_reading(int number) const {
  throw posix_error(number, format_text("reading the checkpoint {} failed", {sanitize(path_)}),
                    number == ESTALE ? "another process has replaced the file meanwhile; load it again" : "");
}

DTRAIN_DEFINED TensorFiles::TensorFiles(const std::string& path, bool takes_index) {
  SafetensorsFile& file = files_.emplace_back(path);
  if (!file) return;
  if (takes_index && path.ends_with(".index.json")) {
    open_index(path);
    return;
  }
  file.read_header();
  for (const FileTensor& tensor : file.header().tensors) {
    tensors_.emplace(tensor.name, Found{&tensor, &file});
  }
}

DTRAIN_DEFINED void TensorFiles::open_index(const std::string& path) {
  std::map<std::string, std::set<std::string>> names_in;  // names of the tensors in each file
  const std::string text = files_.front().read_text();
  bool is_map = first_invalid_utf8(text) == std::string_view::npos;
  bool is_seen = false;
  const auto wrong = identity::read_json_members(text, [&](const std::string& key, const identity::Json& value) {
    if (key != "weight_map") return true;
    is_map = is_map && !is_seen;
    is_seen = true;
    for (std::size_t i = 0; i < value.keys.size(); ++i) {
      is_map = is_map && value.items[i].is(identity::Json::Type::string);
      names_in[value.items[i].text].insert(value.keys[i]);
    }
    return value.is(identity::Json::Type::object);
  });
  if (!is_map || wrong || names_in.empty())
    refuse("it is no index of safetensors files, which has a weight_map; name another");
  for (const auto& [name, wanted] : names_in) {
    if (name.empty() || name == "." || name == ".." ||
        name.find_first_of(std::string_view("/\0", 2)) != std::string::npos) {
      refuse(format_text("its weight_map has the file {}, and only files beside it are read; name another index",
                         {in_quotes(name)}));
    }
    SafetensorsFile& file = files_.emplace_back(path.substr(0, path.rfind('/') + 1) + name);
    if (!file) refuse(format_text("its file {} is missing; copy it beside the index", {in_quotes(name)}));
    file.read_header();
    std::size_t found = 0;
    for (const FileTensor& tensor : file.header().tensors) {
      if (!wanted.contains(tensor.name)) continue;
      tensors_.emplace(tensor.name, Found{&tensor, &file});
      ++found;
    }
    if (found == wanted.size()) continue;
    refuse(format_text("its weight_map has {} tensors in the file {}, which has {} of them; copy both again",
                       {wanted.size(), in_quotes(name), found}));
  }
}

DTRAIN_DEFINED void TensorFiles::check_digests() const {
  for (const SafetensorsFile& file : files_) {
    file.check_digest();
  }
}

}  // namespace DTRAIN_NAMESPACE::ddp

#endif  // DTRAIN_DEFINITIONS
