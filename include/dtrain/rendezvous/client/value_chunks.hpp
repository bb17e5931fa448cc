#pragma once
/// @file
/// Value chunks: a long value in parts under KEY/0, KEY/1, since the job's store bounds values.

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "dtrain/core/config.hpp"
#include "dtrain/core/text/format_text.hpp"

namespace DTRAIN_NAMESPACE::rendezvous {

/// Keys and values for the parts of `bytes`; none for no bytes.
std::vector<std::pair<std::string, std::string>> value_chunks(const std::string& key, std::string_view bytes);

/// Joins what `read(name)` returns for the name of each part of a value of `size` bytes.
std::string join_value_chunks(const std::string& key, std::size_t size,
                              const std::function<std::string(const std::string& name)>& read);

#if DTRAIN_DEFINITIONS

namespace detail {

inline constexpr std::size_t value_chunk_bytes = std::size_t{256} << 10;

inline std::string value_chunk_name(const std::string& key, std::size_t begin) {
  return format_text("{}/{}", {key, begin / value_chunk_bytes});
}

}  // namespace detail

DTRAIN_DEFINED std::vector<std::pair<std::string, std::string>> value_chunks(const std::string& key,
                                                                             std::string_view bytes) {
  std::vector<std::pair<std::string, std::string>> chunks;
  for (std::size_t begin = 0; begin < bytes.size(); begin += detail::value_chunk_bytes) {
    chunks.emplace_back(detail::value_chunk_name(key, begin), bytes.substr(begin, detail::value_chunk_bytes));
  }
  return chunks;
}

DTRAIN_DEFINED std::string join_value_chunks(const std::string& key, std::size_t size,
                                             const std::function<std::string(const std::string& name)>& read) {
  std::string bytes;
  for (std::size_t begin = 0; begin < size; begin += detail::value_chunk_bytes) {
    bytes += read(detail::value_chunk_name(key, begin));
  }
  return bytes;
}

#endif  // DTRAIN_DEFINITIONS

}  // namespace DTRAIN_NAMESPACE::rendezvous
