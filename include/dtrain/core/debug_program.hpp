#pragma once
/// @file
/// is_debug_program(): whether a file of the program was compiled without NDEBUG, as the linker finds.

#include "dtrain/core/config.hpp"

/// The linker decides: files compiled without NDEBUG define this function, all others only name it. So nothing in
/// dtrain's own functions depends on NDEBUG, in which the files of one program may differ. The file with the
/// definitions (DTRAIN_IMPLEMENTATION) does not count: it may be compiled apart from the program.
extern "C" __attribute__((weak, visibility("default"))) void dtrain_has_file_without_ndebug();
#if !defined(NDEBUG) && !defined(DTRAIN_IMPLEMENTATION)
void dtrain_has_file_without_ndebug() {}
#endif

namespace DTRAIN_NAMESPACE {

/// Whether a file of the program that includes dtrain was compiled without NDEBUG.
inline bool is_debug_program() noexcept {
  void (*volatile address)() = &dtrain_has_file_without_ndebug;  // volatile: no compiler knows the answer, in any file
  return address != nullptr;
}

}  // namespace DTRAIN_NAMESPACE
