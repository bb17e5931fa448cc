#pragma once
/// @file
/// Programs that MPI's launcher starts, for tests that are built with or without MPI.

#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "support/contains.hpp"
#include "support/program.hpp"
#include "support/skip.hpp"

namespace support {

inline const std::string mpirun = DTRAIN_TEST_MPIRUN;  ///< empty without MPI

/// Blocking: until `launcher` has ended, or three minutes have passed.
inline Result started(const std::string& launcher, std::vector<std::string> arguments,
                      Program::Variables variables = {}) {
  variables.insert({{"OMPI_ALLOW_RUN_AS_ROOT", "1"}, {"OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"}});
  Program program(launcher, std::move(arguments), variables);  // at the end of its input MPICH's may die of SIGPIPE
  return program.wait(soon(std::chrono::minutes(3)));
}

/// Open MPI 4's mpirun now and then fails because a rank did not call MPI_Finalize, and names PID 0, when every rank
/// has called it. A program that does nothing else shows it, too (issues 7833 and 9389 of open-mpi/ompi).
inline bool is_false_report(const Result& result) {
  return contains(result.error, "with PID 0 on") && contains(result.error, "exiting improperly");
}

}  // namespace support

#define SKIP_WITHOUT_MPI()                                                                      \
  if (support::mpirun.empty()) {                                                                \
    return dtrain_test::skip("built without MPI (libopenmpi-dev and openmpi-bin provide one)"); \
  }
