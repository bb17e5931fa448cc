# Builds the consumer in this folder against dtrain, found in the way WAY names.
# Needs WAY (find_package, add_subdirectory), DTRAIN_SOURCE, DTRAIN_BINARY, COMPILER, GENERATOR, WORK.

function(run)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE output TIMEOUT 50)
  if(NOT status STREQUAL "0")
    list(JOIN ARGN " " command)
    message(FATAL_ERROR "${command}\nended with ${status}:\n${output}")
  endif()
endfunction()

file(REMOVE_RECURSE "${WORK}")
set(arguments "-DWAY=${WAY}" "-DCMAKE_CXX_COMPILER=${COMPILER}" -G "${GENERATOR}")
if(WAY STREQUAL "find_package")
  run("${CMAKE_COMMAND}" --install "${DTRAIN_BINARY}" --prefix "${WORK}/prefix")
  list(APPEND arguments "-DCMAKE_PREFIX_PATH=${WORK}/prefix")
else()
  list(APPEND arguments "-DDTRAIN_SOURCE=${DTRAIN_SOURCE}")
endif()
run("${CMAKE_COMMAND}" -S "${CMAKE_CURRENT_LIST_DIR}" -B "${WORK}/build" ${arguments})
run("${CMAKE_COMMAND}" --build "${WORK}/build")
run("${WORK}/build/consumer")
