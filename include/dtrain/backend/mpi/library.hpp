#pragma once
/// @file
/// The MPI library: its header and version, whether it has ended, its error codes as Error.

#include <string>
#include <system_error>

#include "dtrain/core/config.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/text/format_text.hpp"

#if DTRAIN_WITH_MPI

#ifndef OMPI_SKIP_MPICXX
#define OMPI_SKIP_MPICXX 1
#endif
#ifndef MPICH_SKIP_MPICXX
#define MPICH_SKIP_MPICXX 1
#endif
#include <mpi.h>

namespace DTRAIN_NAMESPACE::backend::mpi {

/// Whether MPI is finalized in this process; most other MPI calls then abort the process.
inline bool has_ended() noexcept {
  int ended = 0;
  return MPI_Finalized(&ended) != MPI_SUCCESS || ended != 0;
}

/// The category of MPI's own error codes, named "mpi". It calls MPI_Error_string() only while MPI runs.
inline const std::error_category& mpi_category() noexcept {
  struct Category final : std::error_category {
    const char* name() const noexcept override { return "mpi"; }
    std::string message(int code) const override {
      char text[MPI_MAX_ERROR_STRING] = {};
      int length = 0;
      const bool said = !has_ended() && MPI_Error_string(code, text, &length) == MPI_SUCCESS;
      return said ? std::string(text, static_cast<std::size_t>(length)) : "MPI error " + std::to_string(code);
    }
  };
  static const Category category;
  return category;
}

/// "doing: MPI's message".
inline Error mpi_error(int code, const std::string& doing) {
  return {std::error_code(code, mpi_category()), format_text("{}: {}", {doing, mpi_category().message(code)})};
}

/// @throws Error (of the category mpi) unless `code` is MPI_SUCCESS
inline void check(int code, const char* doing) {
  if (code != MPI_SUCCESS) {
    throw mpi_error(code, doing);
  }
}

/// "Open MPI v4.1.4".
inline std::string library_name() {
  char text[MPI_MAX_LIBRARY_VERSION_STRING] = {};
  int length = 0;
  if (MPI_Get_library_version(text, &length) != MPI_SUCCESS) {
    return "an MPI of unknown make";
  }
  const std::string whole(text, static_cast<std::size_t>(length));
  return whole.substr(0, whole.find_first_of(",\n"));
}

}  // namespace DTRAIN_NAMESPACE::backend::mpi

#endif  // DTRAIN_WITH_MPI
