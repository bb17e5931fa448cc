# What this repository's own programs (examples, bench, tests) are compiled with; users' targets never see it.

add_library(dtrain_own_programs INTERFACE)
target_link_libraries(dtrain_own_programs INTERFACE dtrain::dtrain)
target_compile_options(
  dtrain_own_programs INTERFACE -Wall -Wextra -Wshadow -Wconversion
                                "$<$<BOOL:${DTRAIN_WARNINGS_AS_ERRORS}>:-Werror>")

# One program for each SOURCE.cpp of the calling folder, in the build's folder of the same name.
function(dtrain_add_programs)
  file(GLOB sources CONFIGURE_DEPENDS *.cpp)
  foreach(source IN LISTS sources)
    get_filename_component(name "${source}" NAME_WE)
    add_executable(${name} "${source}")
    target_link_libraries(${name} PRIVATE dtrain_own_programs)
  endforeach()
endfunction()
