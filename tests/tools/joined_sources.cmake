# Several source files compiled as one. Most of what a compiler does for a file of a few hundred lines is dtrain's own
# code, again and again; joined, it is done once.

# Sets CAN_JOIN and ALONE to what of the sources can stand in a namespace and what cannot: it adds to another namespace,
# or it has an #if about something that DTRAIN_SAME_FOR_ALL does not list (what all sources of a target see alike).
function(dtrain_split_joinable can_join alone)
  set(joinable "")
  set(left "")
  foreach(source IN LISTS ARGN)
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${source}")
    file(STRINGS "${source}" obstacles REGEX "^(template <>|namespace (dtrain|std|doctest)|#if)")
    foreach(name IN LISTS DTRAIN_SAME_FOR_ALL)
      list(TRANSFORM obstacles REPLACE "${name}" "" REGEX "^#if")
    endforeach()
    list(FILTER obstacles EXCLUDE REGEX "^#if(def)?[^A-Za-z]*$")
    if(obstacles)
      list(APPEND left "${source}")
    else()
      list(APPEND joinable "${source}")
    endif()
  endforeach()
  set(${can_join} "${joinable}" PARENT_SCOPE)
  set(${alone} "${left}" PARENT_SCOPE)
endfunction()

# Writes OUTPUT: what the sources include, then each of them in a namespace of its own, so that helpers of one name do
# not meet, then the text END.
function(dtrain_join_sources output end)
  set(includes "")
  set(bodies "")
  foreach(source IN LISTS ARGN)
    get_filename_component(folder "${source}" DIRECTORY)
    get_filename_component(name "${source}" NAME_WE)
    file(STRINGS "${source}" lines REGEX "^#include ")
    foreach(line IN LISTS lines)
      if(line MATCHES "\"(.*)\"")
        if(EXISTS "${folder}/${CMAKE_MATCH_1}")
          set(line "#include \"${folder}/${CMAKE_MATCH_1}\"")
        endif()
      endif()
      string(APPEND includes "${line}\n")
    endforeach()
    string(APPEND bodies "namespace joined_${name} {\n#include \"${source}\"\n}\n")
  endforeach()
  file(CONFIGURE OUTPUT "${output}" CONTENT "${includes}${bodies}${end}" @ONLY)
endfunction()

# One program TARGET of all the sources, whose main takes argc and argv, and for each source NAME.cpp a hard link to it
# in FOLDER and a target NAME that makes it. A process runs the main that its own file is named after, also one that
# was replaced since; where a loader (ld.so) runs it, the one that argv[0] names.
function(dtrain_join_programs target folder)
  set(end "#include <unistd.h>\n#include <cstdio>\n#include <string_view>\n\nint main(int argc, char** argv) {\n"
          "  char path[4096] = {}\;\n  const ssize_t size = ::readlink(\"/proc/self/exe\", path, sizeof(path))\;\n"
          "  std::string_view name(path, size < 0 ? 0 : static_cast<std::size_t>(size))\;\n"
          "  if (name.find(\"/ld-\") != name.npos) {\n    name = argv[0]\;\n  }\n"
          "  name.remove_prefix(name.rfind('/') + 1)\;\n  name = name.substr(0, name.find(\" (deleted)\"))\;\n")
  set(links "")
  foreach(source IN LISTS ARGN)
    get_filename_component(name "${source}" NAME_WE)
    list(APPEND end "  if (name == \"${name}\") {\n    return joined_${name}::main(argc, argv)\;\n  }\n")
    list(APPEND links COMMAND "${CMAKE_COMMAND}" -E create_hardlink "$<TARGET_FILE:${target}>" "${folder}/${name}")
    add_custom_target(${name} ALL)
    add_dependencies(${name} ${target})
    set_target_properties(${name} PROPERTIES DTRAIN_JOINED ${target})
  endforeach()
  list(APPEND end "  std::fputs(\"no program has this file's name\\n\", stderr)\;\n  return 2\;\n}\n")
  list(JOIN end "" end)
  string(REPLACE "\;" ";" end "${end}")

  set(joined "${CMAKE_CURRENT_BINARY_DIR}/${target}.cpp")
  dtrain_join_sources("${joined}" "${end}" ${ARGN})
  add_executable(${target} "${joined}")
  add_custom_command(TARGET ${target} POST_BUILD COMMAND "${CMAKE_COMMAND}" -E make_directory "${folder}" ${links} VERBATIM)
endfunction()
