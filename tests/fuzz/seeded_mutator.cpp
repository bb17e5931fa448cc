// libFuzzer's mutator, which now and then starts again from one of the fuzzer's own seeds.

#include <algorithm>
#include <cstring>

#include "fuzz/fuzz.hpp"

extern "C" std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size, std::size_t max_size);

extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size, std::size_t max_size,
                                               unsigned random) {
  static const std::vector<std::string> seeds = fuzz::seeds();
  if (random % 16 == 0 && !seeds.empty()) {
    const std::string& seed = seeds[random / 16 % seeds.size()];
    size = std::min(seed.size(), max_size);
    std::memcpy(data, seed.data(), size);
  }
  return LLVMFuzzerMutate(data, size, max_size);
}
