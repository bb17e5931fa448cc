// Prints a digest of the bits that each kernel gives for the same inputs; compiled with several sets of flags, which
// may not change a line of it.

#include <cinttypes>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <span>
#include <vector>

#include "dtrain/core/types/small_floats.hpp"
#include "dtrain/kernels/reduction.hpp"
#include "support/element_bytes.hpp"

using dtrain::kernels::Isa;

namespace {

/// FNV-1a.
std::uint64_t digest(std::span<const std::byte> bytes, std::uint64_t before) {
  for (const std::byte byte : bytes)
    before = (before ^ static_cast<std::uint64_t>(byte)) * 0x100000001b3;
  return before;
}

std::uint64_t digest_of(dtrain::DType dtype, dtrain::ReduceOp op, Isa isa) {
  constexpr std::size_t count = 4099;
  std::uint64_t result = 0xcbf29ce484222325;
  for (const unsigned ranks : {2U, 3U, 6U}) {
    std::vector<std::vector<std::byte>> inputs;
    std::vector<const std::byte*> sources;
    for (unsigned rank = 0; rank < ranks; ++rank)
      inputs.push_back(support::awkward_bytes(dtype, count, 100 * ranks + rank));
    for (const std::vector<std::byte>& input : inputs)
      sources.push_back(input.data());
    std::byte* const target = inputs[1].data();
    dtrain::kernels::Reduction::of(dtype, op, isa)(sources, std::span(&target, 1), count);
    result = digest(inputs[1], result);
  }
  return result;
}

}  // namespace

int main() {
  for (const dtrain::DType dtype : support::all_dtypes) {
    for (const dtrain::ReduceOp op : support::all_ops) {
      for (const Isa isa : {Isa::baseline, Isa::avx2}) {
        if (dtrain::kernels::runs_on_this_machine(isa)) {
          std::printf("%s %s %s %016" PRIx64 "\n", dtrain::name(dtype), dtrain::name(op), dtrain::kernels::name(isa),
                      digest_of(dtype, op, isa));
        }
      }
    }
  }
  std::uint64_t halves = 0;
  for (std::uint32_t bits = 0; bits <= 0xffff; ++bits) {
    const auto value = static_cast<float>(dtrain::float16::from_bits(static_cast<std::uint16_t>(bits)));
    halves = halves * 3 + dtrain::float16(value).bits;
  }
  std::printf("float16 %016" PRIx64 "\n", halves);
  return 0;
}
