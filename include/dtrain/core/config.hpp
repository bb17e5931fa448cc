#pragma once
/// @file
/// The one reader of compiler macros: every other file asks here what the compiler can do.

#if !defined(__linux__)
#error "dtrain: Linux is the only system it runs on (epoll, memfd and futexes carry it)"
#endif

#if !defined(__cplusplus) || __cplusplus < 202002L
#error "dtrain: C++20 is needed; compile with -std=c++20 (g++ >= 12, clang >= 14, nvcc >= 12.4)"
#endif

/// 1 where ThreadSanitizer watches: deadlines get slack and fences it cannot see are avoided.
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

/// The processor, for the one instruction that a spinning wait wants.
#if defined(__x86_64__) || defined(__i386__)
#define DTRAIN_X86 1
#else
#define DTRAIN_X86 0
#endif
#if defined(__aarch64__)
#define DTRAIN_ARM64 1
#else
#define DTRAIN_ARM64 0
#endif
