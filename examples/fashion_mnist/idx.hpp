#pragma once
/// @file
/// Reads an IDX file, as the MNIST data sets come in: a magic number, extents, and one byte an element, under gzip.

#include <zlib.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "dtrain/core/error.hpp"

namespace fashion_mnist {

struct IdxArray {
  std::vector<std::uint32_t> extents;
  std::vector<std::uint8_t> elements;
};

/// Every sentence about data ends with what the reader can do.
inline std::string data_remedy() {
  return "; install it with 'apt install --reinstall dataset-fashion-mnist' or name its folder with --data=DIR";
}

/// An open file that zlib reads; a file that is not compressed is read as it is.
class GzipReader {
 public:
  /// @throws dtrain::Error (the system's code) naming the file.
  explicit GzipReader(const std::string& path) : path_(path) {
    errno = 0;
    file_.reset(::gzopen(path.c_str(), "rbe"));  // e: O_CLOEXEC
    if (file_ == nullptr) {
      throw dtrain::posix_error(errno == 0 ? ENOMEM : errno, "opening the data file " + path + " failed",
                                data_remedy().substr(2));
    }
    ::gzbuffer(file_.get(), 1U << 17);
  }

  /// Fills `target` as far as the file reaches. @returns how many bytes that was.
  /// @throws dtrain::Error if the compressed data is damaged or ends too early.
  std::size_t read(std::span<std::uint8_t> target) {
    std::size_t done = 0;
    while (done < target.size()) {
      const auto wanted = static_cast<unsigned>(std::min<std::size_t>(target.size() - done, 1U << 20));
      const int got = ::gzread(file_.get(), target.data() + done, wanted);
      int code = Z_OK;
      const char* text = ::gzerror(file_.get(), &code);
      if (got < 0 || code == Z_BUF_ERROR) {
        fail(code == Z_BUF_ERROR ? "its compressed data ends too early" : text);
      }
      if (got == 0) break;
      done += static_cast<std::size_t>(got);
    }
    return done;
  }

  [[noreturn]] void fail(const std::string& what) const {
    throw dtrain::Error(dtrain::Errc::protocol, "the data file " + path_ + " cannot be used: " + what + data_remedy());
  }

 private:
  struct Close {
    void operator()(gzFile file) const noexcept { static_cast<void>(::gzclose(file)); }
  };

  std::string path_;
  std::unique_ptr<gzFile_s, Close> file_;
};

/// All of `path`, which must hold unsigned bytes in `dimensions` dimensions, up to a gibibyte, and nothing after them.
/// Memory grows with what the file really holds, not with what its header claims.
/// @throws dtrain::Error in one sentence: which file, what is wrong, what to do.
inline IdxArray read_idx(const std::string& path, std::uint32_t dimensions) {
  GzipReader reader(path);
  const auto next_u32 = [&reader] {
    std::array<std::uint8_t, 4> b{};
    if (reader.read(b) != b.size()) reader.fail("it ends within its header");
    return std::uint32_t{b[0]} << 24 | std::uint32_t{b[1]} << 16 | std::uint32_t{b[2]} << 8 | std::uint32_t{b[3]};
  };
  constexpr std::uint32_t unsigned_bytes = 0x0800;
  if (next_u32() != (unsigned_bytes | dimensions)) {
    reader.fail("it is not an IDX file of bytes in " + std::to_string(dimensions) + " dimension(s)");
  }
  IdxArray array;
  std::uint64_t size = 1;
  for (std::uint32_t i = 0; i < dimensions; ++i) {
    array.extents.push_back(next_u32());
    size *= array.extents.back();
    if (size == 0 || size > std::uint64_t{1} << 30) reader.fail("its header claims an impossible size");
  }
  constexpr std::size_t piece = std::size_t{8} << 20;
  while (array.elements.size() < size) {
    const std::size_t old = array.elements.size();
    array.elements.resize(std::min<std::size_t>(old + piece, size));
    const std::size_t got = reader.read(std::span(array.elements).subspan(old));
    if (old + got < array.elements.size()) {
      reader.fail("it ends after " + std::to_string(old + got) + " of its " + std::to_string(size) + " elements");
    }
  }
  std::array<std::uint8_t, 1> more{};
  if (reader.read(more) != 0) reader.fail("it goes on after its " + std::to_string(size) + " elements");
  return array;
}

}  // namespace fashion_mnist
