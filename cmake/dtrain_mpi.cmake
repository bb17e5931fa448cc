# The target dtrain::mpi, which adds backend::Mpi, over the MPI that CMake's FindMPI finds; nothing where there is none.
# MPI's C++ bindings are not used: they cost compile time, and MPI has given them up.

if(NOT TARGET dtrain::mpi)
  set(MPI_CXX_SKIP_MPICXX TRUE)
  find_package(MPI QUIET COMPONENTS CXX)
  if(MPI_CXX_FOUND)
    add_library(dtrain_mpi INTERFACE)
    add_library(dtrain::mpi ALIAS dtrain_mpi)
    target_link_libraries(dtrain_mpi INTERFACE dtrain::dtrain MPI::MPI_CXX)
    target_compile_definitions(dtrain_mpi INTERFACE DTRAIN_WITH_MPI=1)
  endif()
endif()
