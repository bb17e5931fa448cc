/// @file
/// Runs a parsed PTX kernel: instructions as the PTX ISA defines them, one thread after the other, to a barrier each.

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>

#include "copy.hpp"
#include "ptx.hpp"

namespace emulation {
namespace {

float float_of(std::uint64_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits));
}

/// NVIDIA's GPUs have one NaN.
std::uint64_t bits_of(float value) {
  return std::isnan(value) ? 0x7fffffffU : std::bit_cast<std::uint32_t>(value);
}

/// From the definition: sign, exponent from -14 to 15, 10 digits; below 2^-14 multiples of 2^-24.
double value_of_half(std::uint64_t bits) {
  const int exponent = static_cast<int>(bits >> 10U & 31U);
  const double digits = static_cast<double>(bits & 1023U);
  const double magnitude = exponent == 31  ? (digits != 0 ? std::numeric_limits<double>::quiet_NaN() : HUGE_VAL)
                           : exponent == 0 ? std::ldexp(digits, -24)
                                           : std::ldexp(1024.0 + digits, exponent - 25);
  return (bits & 0x8000U) != 0 ? -magnitude : magnitude;
}

/// The nearest such value, to even.
std::uint64_t half_of(float value) {
  if (std::isnan(value)) return 0x7fffU;
  const std::uint64_t sign = std::signbit(value) ? 0x8000U : 0U;
  const double magnitude = std::abs(static_cast<double>(value));
  if (magnitude >= 65520.0) return sign | 0x7c00U;
  const int exponent = magnitude < std::ldexp(1.0, -14) ? -14 : std::ilogb(magnitude);
  const auto steps = static_cast<std::uint64_t>(std::nearbyint(std::ldexp(magnitude, 10 - exponent)));
  // 1024 steps are the implicit digit; a carry to 2048 raises the exponent.
  return sign | (static_cast<std::uint64_t>(exponent + 14) * 1024U + steps);
}

double double_of(std::uint64_t bits) {
  return std::bit_cast<double>(bits);
}

/// Of the device, or pinned.
std::byte* memory_at(std::uint64_t address, std::size_t bytes) {
  const End end = end_of(reinterpret_cast<const void*>(address), bytes);
  void* const shadow = end.kind == End::Kind::pageable ? nullptr : end.address;
  if (shadow == nullptr || address % bytes != 0) {
    std::fprintf(stderr, "emulated kernel: address %#llx of %zu bytes is not the device's, or misaligned\n",
                 static_cast<unsigned long long>(address), bytes);
    std::abort();
  }
  return static_cast<std::byte*>(shadow);
}

}  // namespace

void PtxKernel::run(std::uint32_t blocks, std::uint32_t threads, const std::vector<std::byte>& parameters) const {
  std::vector<Thread> all(threads);
  std::vector<std::byte> shared(shared_bytes_);
  for (std::uint32_t block = 0; block < blocks; ++block) {
    std::fill(shared.begin(), shared.end(), std::byte{0xA5});  // nothing is zero by itself
    for (std::uint32_t i = 0; i < threads; ++i) {
      all[i].registers.assign(registers_.size(), 0xdeadbeefdeadbeefU);
      all[i].registers[block_register] = block;
      all[i].registers[thread_register] = i;
      all[i].registers[blocks_register] = blocks;
      all[i].at = 0;
      all[i].is_done = false;
    }
    for (bool runs = true; runs;) {
      runs = false;
      for (Thread& thread : all) {
        if (!thread.is_done) run_thread(thread, parameters, shared);
        runs = runs || !thread.is_done;
      }
    }
  }
}

void PtxKernel::run_thread(Thread& thread, const std::vector<std::byte>& parameters,
                           std::vector<std::byte>& shared) const {
  std::vector<std::uint64_t>& registers = thread.registers;
  std::size_t& at = thread.at;
  const auto value = [&](const Operand& operand) {
    return operand.kind == Operand::Kind::reg ? registers[operand.value] : operand.value;
  };
  while (true) {
    const Instruction& now = instructions_[at++];
    if (now.predicate >= 0 && (registers[static_cast<std::size_t>(now.predicate)] != 0) == now.is_negated) continue;
    const auto a = [&] { return value(now.operands[1]); };
    const auto b = [&] { return value(now.operands[2]); };
    const auto c = [&] { return value(now.operands[3]); };
    const auto low = [](std::uint64_t wide) { return static_cast<std::uint32_t>(wide); };
    const auto set = [&](std::uint64_t result) { registers[now.operands[0].value] = result; };
    switch (now.opcode) {
      case Opcode::move: set(a()); break;
      case Opcode::pack: {
        const std::vector<std::uint64_t>& halves = now.operands[1].lanes;
        set((registers[halves[0]] & 0xffffU) | (registers[halves[1]] & 0xffffU) << 16U);
        break;
      }
      case Opcode::unpack: {
        const std::uint64_t word = a();
        registers[now.operands[0].lanes[0]] = word & 0xffffU;
        registers[now.operands[0].lanes[1]] = word >> 16U & 0xffffU;
        break;
      }
      case Opcode::add_u32: set(low(a() + b())); break;
      case Opcode::add_u64: set(a() + b()); break;
      case Opcode::sub_u32: set(low(a() - b())); break;
      case Opcode::mul_u32: set(low(a() * b())); break;
      case Opcode::mad_u32: set(low(a() * b() + c())); break;
      case Opcode::mad_wide: set(std::uint64_t{low(a())} * low(b()) + c()); break;
      case Opcode::mul_wide: set(std::uint64_t{low(a())} * low(b())); break;
      case Opcode::min_u32: set(low(a()) < low(b()) ? low(a()) : low(b())); break;
      case Opcode::and_bits: set(a() & b()); break;
      case Opcode::or_bits: set(a() | b()); break;
      case Opcode::shr_u32: set(low(a()) >> b()); break;
      case Opcode::shl_b32: set(low(a() << b())); break;
      case Opcode::set_ge_u32: set(low(a()) >= low(b()) ? 1 : 0); break;
      case Opcode::set_ge_u64: set(a() >= b() ? 1 : 0); break;
      case Opcode::set_ne_u32: set(low(a()) != low(b()) ? 1 : 0); break;
      case Opcode::set_gt_u32: set(low(a()) > low(b()) ? 1 : 0); break;
      case Opcode::set_ne_u64: set(a() != b() ? 1 : 0); break;
      case Opcode::set_lt_f64: set(double_of(a()) < double_of(b()) ? 1 : 0); break;
      case Opcode::set_nan_f32: set(std::isnan(float_of(a())) || std::isnan(float_of(b())) ? 1 : 0); break;
      case Opcode::set_eq_f32: set(float_of(a()) == float_of(b()) ? 1 : 0); break;
      case Opcode::set_eq_f64: set(double_of(a()) == double_of(b()) ? 1 : 0); break;
      case Opcode::select: set(c() != 0 ? a() : b()); break;
      case Opcode::f32_of_f16: set(bits_of(static_cast<float>(value_of_half(a())))); break;
      case Opcode::f16_of_f32: set(half_of(float_of(a()))); break;
      case Opcode::u16_of_u32: set(a() & 0xffffU); break;
      case Opcode::add_f32: set(bits_of(float_of(a()) + float_of(b()))); break;
      case Opcode::sub_f32: set(bits_of(float_of(a()) - float_of(b()))); break;
      case Opcode::mul_f32: set(bits_of(float_of(a()) * float_of(b()))); break;
      case Opcode::div_f32: set(bits_of(float_of(a()) / float_of(b()))); break;
      case Opcode::sqrt_f32: set(bits_of(std::sqrt(float_of(a())))); break;
      case Opcode::f64_of_f32: set(std::bit_cast<std::uint64_t>(double{float_of(a())})); break;
      case Opcode::f32_of_f64: set(bits_of(static_cast<float>(double_of(a())))); break;
      case Opcode::mul_f64: set(std::bit_cast<std::uint64_t>(double_of(a()) * double_of(b()))); break;
      case Opcode::add_f64: set(std::bit_cast<std::uint64_t>(double_of(a()) + double_of(b()))); break;
      case Opcode::div_f64: set(std::bit_cast<std::uint64_t>(double_of(a()) / double_of(b()))); break;
      case Opcode::sqrt_f64: set(std::bit_cast<std::uint64_t>(std::sqrt(double_of(a())))); break;
      case Opcode::fma_f64:
        set(std::bit_cast<std::uint64_t>(std::fma(double_of(a()), double_of(b()), double_of(c()))));
        break;
      case Opcode::load_parameter: {
        std::uint64_t loaded = 0;
        const Operand& place = now.operands[1];
        const bool is_register = place.kind == Operand::Kind::address;
        const std::uint64_t from = (is_register ? registers[place.value] : place.value) + place.offset;
        if (from + now.bytes > parameters.size()) std::abort();
        std::memcpy(&loaded, &parameters[from], now.bytes);
        set(loaded);
        break;
      }
      case Opcode::load:
      case Opcode::store:
      case Opcode::load_shared:
      case Opcode::store_shared: {
        const bool loads = now.opcode == Opcode::load || now.opcode == Opcode::load_shared;
        const bool is_shared = now.opcode == Opcode::load_shared || now.opcode == Opcode::store_shared;
        const Operand& place = now.operands[loads ? 1 : 0];
        const Operand& names = now.operands[loads ? 0 : 1];
        const std::size_t bytes = now.bytes * names.lanes.size();
        const std::uint64_t address = registers[place.value] + place.offset;
        if (is_shared && (low(address) + bytes > shared.size() || low(address) % bytes != 0)) std::abort();
        std::byte* const memory = is_shared ? &shared[low(address)] : memory_at(address, bytes);
        for (std::size_t lane = 0; lane < names.lanes.size(); ++lane) {
          std::uint64_t& element = registers[names.lanes[lane]];
          if (loads) {
            element = 0;
            std::memcpy(&element, memory + lane * now.bytes, now.bytes);
          } else {
            std::memcpy(memory + lane * now.bytes, &element, now.bytes);
          }
        }
        break;
      }
      case Opcode::bra: at = now.target; break;
      case Opcode::barrier: return;
      case Opcode::ret: thread.is_done = true; return;
    }
  }
}

}  // namespace emulation
