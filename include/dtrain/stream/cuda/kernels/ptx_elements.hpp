#pragma once
/// @file
/// PTX text that reads, writes and widens the elements of an array.

#include <cstddef>
#include <string>

#include "dtrain/core/config.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/core/types/dtype.hpp"

#if DTRAIN_WITH_CUDA

/// The text is for PTX 6.0 and sm_70; the driver compiles it for the device (PTX ISA, "PTX Module Directives").
namespace DTRAIN_NAMESPACE::stream::cuda::ptx {

inline constexpr const char* header = ".version 6.0\n.target sm_70\n.address_size 64\n";

/// Type of a register that memory is read to and written from.
inline std::string memory_type(DType dtype) {
  return dtype == DType::f64 ? "f64" : dtype == DType::f32 ? "f32" : "b16";
}

/// Elements that one instruction reads or writes: up to 16 bytes.
constexpr unsigned lanes(DType dtype) noexcept {
  return dtype == DType::f64 ? 2 : 4;
}

/// "{%h0, %h1, %h2, %h3}", registers `first` and following.
inline std::string registers(DType dtype, char letter, unsigned first, unsigned count) {
  std::string text;
  for (unsigned i = first; i < first + count; ++i) {
    text += (text.empty() ? "%" : ", %") + std::string(1, letter) + memory_type(dtype)[0] + std::to_string(i);
  }
  return count == 1 ? text : "{" + text + "}";
}

/// Reads or writes `count` elements at `address`.
inline std::string transfer(DType dtype, char letter, const char* instruction, const char* address, unsigned count) {
  std::string text;
  const unsigned width = count < lanes(dtype) ? count : lanes(dtype);
  for (unsigned first = 0; first < count; first += width) {
    const std::string names = registers(dtype, letter, first, width);
    const std::string place = format_text("[{}+{}]", {address, first * size_bytes(dtype)});
    const bool loads = instruction[0] == 'l';
    const std::string vector = width == 1 ? "" : ".v" + std::to_string(width);
    text += format_text("{}.global{}.{} {}, {};\n",
                        {instruction, vector, memory_type(dtype), loads ? names : place, loads ? place : names});
  }
  return text;
}

/// Sets %value to element `i` of f32, f16 or bf16; uses %bits.
inline std::string widen_element(DType dtype, unsigned i) {
  const std::string source = registers(dtype, 's', i, 1);
  return dtype == DType::f32 ? "mov.f32 %value, " + source + ";\n"
         : dtype == DType::f16
             ? "cvt.f32.f16 %value, " + source + ";\n"
             : "cvt.u32.u16 %bits, " + source + ";\nshl.b32 %bits, %bits, 16;\nmov.b32 %value, %bits;\n";
}

}  // namespace DTRAIN_NAMESPACE::stream::cuda::ptx

#endif  // DTRAIN_WITH_CUDA
