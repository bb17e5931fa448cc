#pragma once
/// @file
/// What a fuzzer consists of: one target, the inputs that its search begins with, and a check that ends the process.

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

/// Called with every input. @returns 0
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace fuzz {

/// Whole inputs that are worth changing, of which each fuzzer defines its own. Lines and words of them are mixed.
std::vector<std::string> seeds();

inline std::string_view text_of(const std::uint8_t* data, std::size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

/// Ends the process, which every driver counts as a failure, unless `holds`.
inline void require(bool holds, const char* sentence) {
  if (!holds) {
    std::fprintf(stderr, "FAILED: %s\n", sentence);
    std::abort();
  }
}

/// Non-empty, of one line, of a length that a person can read.
inline void require_sentence(std::string_view sentence) {
  require(!sentence.empty(), "an error has a sentence");
  require(sentence.size() < 4096, "a sentence is bounded whatever it quotes");
  for (const char byte : sentence) {
    require(static_cast<unsigned char>(byte) >= ' ', "a sentence has no control bytes");
  }
}

}  // namespace fuzz
