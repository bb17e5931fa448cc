# The target dtrain::gloo, which adds backend::Gloo, over the Gloo that lies where the compiler looks or below Gloo_ROOT
# (Debian: libgloo-dev); nothing where there is none. Gloo's own package has no version that could be asked for.

if(NOT TARGET dtrain::gloo)
  find_path(DTRAIN_GLOO_INCLUDE_DIR gloo/transport/tcp/device.h HINTS "${Gloo_ROOT}" PATH_SUFFIXES include)
  find_library(DTRAIN_GLOO_LIBRARY gloo HINTS "${Gloo_ROOT}" PATH_SUFFIXES lib)
  mark_as_advanced(DTRAIN_GLOO_INCLUDE_DIR DTRAIN_GLOO_LIBRARY)
  if(DTRAIN_GLOO_INCLUDE_DIR AND DTRAIN_GLOO_LIBRARY)
    add_library(dtrain_gloo INTERFACE)
    add_library(dtrain::gloo ALIAS dtrain_gloo)
    target_link_libraries(dtrain_gloo INTERFACE dtrain::dtrain "${DTRAIN_GLOO_LIBRARY}")
    target_include_directories(dtrain_gloo SYSTEM INTERFACE "${DTRAIN_GLOO_INCLUDE_DIR}")
    target_compile_definitions(dtrain_gloo INTERFACE DTRAIN_WITH_GLOO=1)
  endif()
endif()
