#pragma once
/// @file
/// Configuration macros: compiler, sanitizer, processor, optional components, separate compilation. Checks of system
/// and C++ standard.

// A file that does not exist ends the compilation: all further errors would follow from this one. The single header has
// these checks before its first #include.
#if !defined(__linux__)
#error "dtrain: Linux is the only system it runs on (epoll, memfd and futexes carry it)"
#include <dtrain needs Linux>
#endif

#if !defined(__cplusplus) || __cplusplus < 202002L
#error "dtrain: C++20 is needed; compile with -std=c++20 (g++ >= 12, clang >= 14, nvcc >= 12.4)"
#include <dtrain needs -std=c++20>
#endif

#if defined(inline)
#error \
    "dtrain: a header before this one defines the keyword inline as a macro; include dtrain before that header, or #undef inline behind it"
#include <dtrain needs the keyword inline>
#endif

#include "dtrain/core/version.hpp"

/// 1 under ThreadSanitizer: deadlines are longer, and fences that it cannot follow are avoided.
#if defined(__SANITIZE_THREAD__)
#define DTRAIN_THREAD_SANITIZER 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define DTRAIN_THREAD_SANITIZER 1
#endif
#endif
#ifndef DTRAIN_THREAD_SANITIZER
#define DTRAIN_THREAD_SANITIZER 0
#endif

/// 1: most functions that are no templates are only declared, except in the one source file of the program that defines
/// DTRAIN_IMPLEMENTATION before it includes dtrain.hpp. Every file of the program has the same value. 0: header-only.
#ifndef DTRAIN_SEPARATE_COMPILATION
#define DTRAIN_SEPARATE_COMPILATION 0
#endif

#if defined(DTRAIN_IMPLEMENTATION) && !DTRAIN_SEPARATE_COMPILATION
#error "dtrain: DTRAIN_IMPLEMENTATION needs -DDTRAIN_SEPARATE_COMPILATION=1, here and in all files of the program"
#endif

/// For headers: whether this source file compiles the definitions, and the specifier that begins each of them. They
/// stand at the end of the header that declares them, under #if DTRAIN_DEFINITIONS, with the includes that only they
/// need; within the namespace if they need none.
#if !DTRAIN_SEPARATE_COMPILATION
#define DTRAIN_DEFINITIONS 1
#define DTRAIN_DEFINED inline
#elif defined(DTRAIN_IMPLEMENTATION)
#define DTRAIN_DEFINITIONS 1
#define DTRAIN_DEFINED
#else
#define DTRAIN_DEFINITIONS 0
#endif

/// Begins the declaration and the definition of a function that few programs call: header-only it is a template, so
/// that other programs parse its body and instantiate nothing that it uses.
#if DTRAIN_SEPARATE_COMPILATION
#define DTRAIN_ON_USE
#else
#define DTRAIN_ON_USE template <int...>
#endif

#if defined(__aarch64__)
#define DTRAIN_ARM64 1
#else
#define DTRAIN_ARM64 0
#endif
#if defined(__x86_64__)
#define DTRAIN_X86_64 1
#else
#define DTRAIN_X86_64 0
#endif

/// 1 adds backend::Mpi, which needs <mpi.h> and the MPI library: CMake's target dtrain::mpi sets it.
#ifndef DTRAIN_WITH_MPI
#define DTRAIN_WITH_MPI 0
#endif

/// Never inlined: for texts of errors and other code that runs rarely, so that its callers stay small.
#define DTRAIN_NOT_INLINED __attribute__((noinline))

/// In a struct with several strings that many functions copy or destroy, none of them in a step: its special members as
/// the compiler would define them, but never inlined. Otherwise each use, and each exception that may pass it, would
/// hold the code of all its strings. The struct is no aggregate then.
#define DTRAIN_MEMBERS_NOT_INLINED(Struct) DTRAIN_MEMBERS(Struct, = default)
#define DTRAIN_MEMBERS(Struct, defined)                            \
  DTRAIN_NOT_INLINED Struct() defined;                             \
  DTRAIN_NOT_INLINED Struct(const Struct&) defined;                \
  DTRAIN_NOT_INLINED Struct(Struct&&) noexcept defined;            \
  DTRAIN_NOT_INLINED Struct& operator=(const Struct&) defined;     \
  DTRAIN_NOT_INLINED Struct& operator=(Struct&&) noexcept defined; \
  DTRAIN_NOT_INLINED ~Struct() defined

/// The same; with DTRAIN_DEFINE_MEMBERS(Struct) among the definitions, they are compiled with these.
#if DTRAIN_SEPARATE_COMPILATION
#define DTRAIN_MEMBERS_DEFINED_APART(Struct) DTRAIN_MEMBERS(Struct, )
#define DTRAIN_DEFINE_MEMBERS(Struct)                     \
  Struct::Struct() = default;                             \
  Struct::Struct(const Struct&) = default;                \
  Struct::Struct(Struct&&) noexcept = default;            \
  Struct& Struct::operator=(const Struct&) = default;     \
  Struct& Struct::operator=(Struct&&) noexcept = default; \
  Struct::~Struct() = default
#else
#define DTRAIN_MEMBERS_DEFINED_APART(Struct) DTRAIN_MEMBERS_NOT_INLINED(Struct)
#define DTRAIN_DEFINE_MEMBERS(Struct) static_assert(true)
#endif

/// Inlined at every level, including -O0: for the parts of an inner loop.
#define DTRAIN_ALWAYS_INLINE inline __attribute__((always_inline))

#if defined(__clang__)
/// For an inner loop that must also be fast in an unoptimised program. clang has no such attribute.
#define DTRAIN_OPTIMIZED
/// A helper with instructions that the including program may not be compiled for. clang rejects always_inline into a
/// template without the same attribute, but inlines the helper all the same.
#define DTRAIN_TARGET_HELPER(isa) inline __attribute__((target(isa)))
#else
#define DTRAIN_OPTIMIZED __attribute__((optimize("O3")))
#define DTRAIN_TARGET_HELPER(isa) inline __attribute__((always_inline))
#endif

/// Opens a block whose floating-point arithmetic is done as written. -ffast-math may add in another order, fuse a
/// product into a sum, and assume that no NaN occurs. Without such a pragma (g++; clang 14 on other processors) an
/// empty asm, keep_as_computed(), needs each result in a register before the next step. A NaN is compared as an
/// integer, which no flag can fold.
#if defined(__clang__) && DTRAIN_X86_64
#define DTRAIN_PRECISE_PRAGMA 1
#define DTRAIN_PRECISE_ARITHMETIC _Pragma("float_control(precise, on)")
#else
#define DTRAIN_PRECISE_PRAGMA 0
#define DTRAIN_PRECISE_ARITHMETIC
#endif

/// 1 adds backend::Gloo, which needs Gloo's headers and library; set by the CMake target dtrain::gloo or by -D.
#ifndef DTRAIN_WITH_GLOO
#define DTRAIN_WITH_GLOO 0
#endif

/// 1 adds backend::Nccl, which needs NCCL's header and library: CMake's target dtrain::nccl sets it. Implies CUDA.
#ifndef DTRAIN_WITH_NCCL
#define DTRAIN_WITH_NCCL 0
#endif

/// 1 adds CUDA streams and buffers, which need the CUDA runtime's header and library, and only the program's own
/// compiler. CMake's target dtrain::cuda sets it.
#if !defined(DTRAIN_WITH_CUDA)
#define DTRAIN_WITH_CUDA DTRAIN_WITH_NCCL
#elif DTRAIN_WITH_NCCL && !DTRAIN_WITH_CUDA
#undef DTRAIN_WITH_CUDA
#define DTRAIN_WITH_CUDA 1
#endif
