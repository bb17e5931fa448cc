#pragma once
/// @file
/// The text that the model learns: a file, or the licenses that Debian and Ubuntu have on every machine.

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>
#include <vector>

#include "dtrain/core/error.hpp"

namespace gpt2 {

/// Of Debian's package base-files.
inline constexpr const char* license_folder = "/usr/share/common-licenses";

inline constexpr std::size_t most_text_bytes = std::size_t{64} << 20;

namespace detail {

[[noreturn]] inline void refuse_text(const std::string& sentence) {
  throw dtrain::Error(dtrain::Errc::protocol, sentence + "; give another text with --data=FILE");
}

/// Appends the bytes of a regular file. @throws dtrain::Error in one sentence if it cannot be read, or the text then
/// is larger than most_text_bytes
inline void append_file(const std::filesystem::path& path, std::vector<std::uint8_t>& text) {
  std::ifstream file(path, std::ios::binary);
  const std::size_t before = text.size();
  text.resize(most_text_bytes + 1);
  file.read(reinterpret_cast<char*>(text.data()) + before, static_cast<std::streamsize>(text.size() - before));
  if (!file.is_open() || file.bad()) refuse_text("the text " + path.string() + " cannot be read");
  text.resize(before + static_cast<std::size_t>(file.gcount()));
  if (text.size() > most_text_bytes) {
    refuse_text("with " + path.string() + " the text is larger than " + std::to_string(most_text_bytes >> 20) + " MiB");
  }
}

}  // namespace detail

/// All regular files of the folder, sorted by name; not those that symbolic links show a second time.
/// @throws dtrain::Error in one sentence if the folder cannot be read, has no such file, or has too much text.
inline std::vector<std::uint8_t> read_folder(const std::string& folder) {
  namespace fs = std::filesystem;
  std::error_code error;
  std::vector<fs::path> paths;
  for (auto entry = fs::directory_iterator(folder, error); !error && entry != fs::directory_iterator();
       entry.increment(error)) {
    if (entry->symlink_status(error).type() == fs::file_type::regular) paths.push_back(entry->path());
  }
  if (error || paths.empty()) {
    detail::refuse_text("the folder " + folder + " of the package base-files " +
                        (error ? "cannot be read (" + error.message() + ")" : "has no files"));
  }
  std::sort(paths.begin(), paths.end());
  std::vector<std::uint8_t> text;
  for (const fs::path& path : paths) {
    detail::append_file(path, text);
  }
  return text;
}

/// @param path of a regular file; empty: the licenses
/// @throws dtrain::Error in one sentence if it cannot be read or has too much text.
inline std::vector<std::uint8_t> read_text(const std::string& path) {
  if (path.empty()) return read_folder(license_folder);
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) {  // a pipe would be waited for
    detail::refuse_text("the text " + path + (error ? " cannot be read (" + error.message() + ")" : " is not a file"));
  }
  std::vector<std::uint8_t> text;
  detail::append_file(path, text);
  return text;
}

}  // namespace gpt2
