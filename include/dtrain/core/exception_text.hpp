#pragma once
/// @file
/// exception_text(): message of the exception that is being handled. run_rank(), Reducer, LoopHandle, PerNode call it.

#include <string>

#include "dtrain/core/config.hpp"

namespace DTRAIN_NAMESPACE {

/// Message of the exception that is being handled; if memory ran out, with the limit that may be the cause. The frames
/// that what() of LibTorch's c10::Error lists after its message are left out. @pre in a catch block
std::string exception_text();

}  // namespace DTRAIN_NAMESPACE

#if DTRAIN_DEFINITIONS

#include <cerrno>
#include <exception>
#include <new>

#include "dtrain/core/error.hpp"
#include "dtrain/core/text/format_text.hpp"

namespace DTRAIN_NAMESPACE {

DTRAIN_DEFINED std::string exception_text() {
  try {
    throw;
  } catch (const std::bad_alloc& error) {
    return format_text("memory could not be had: {}{}", {error.what(), limit_hint(ENOMEM)});
  } catch (const std::exception& error) {
    const std::string text = error.what();
    return text.substr(0, text.find("\nException raised from "));
  } catch (...) {
    return "an exception that is not a std::exception";
  }
}

}  // namespace DTRAIN_NAMESPACE

#endif  // DTRAIN_DEFINITIONS
