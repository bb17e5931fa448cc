# Installs the headers, the licence and what find_package(dtrain) reads.

include(CMakePackageConfigHelpers)
include(GNUInstallDirs)

set(package_dir "${CMAKE_INSTALL_DATADIR}/cmake/dtrain")
install(TARGETS dtrain EXPORT dtrain_targets FILE_SET HEADERS)
install(EXPORT dtrain_targets NAMESPACE dtrain:: FILE dtrainTargets.cmake DESTINATION "${package_dir}")
configure_package_config_file(cmake/dtrainConfig.cmake.in "${PROJECT_BINARY_DIR}/dtrainConfig.cmake"
                              INSTALL_DESTINATION "${package_dir}")
# Below 1.0 a minor version may change what it likes.
write_basic_package_version_file("${PROJECT_BINARY_DIR}/dtrainConfigVersion.cmake"
                                 COMPATIBILITY SameMinorVersion ARCH_INDEPENDENT)
install(FILES "${PROJECT_BINARY_DIR}/dtrainConfig.cmake" "${PROJECT_BINARY_DIR}/dtrainConfigVersion.cmake"
        DESTINATION "${package_dir}")
install(FILES LICENSE DESTINATION "${CMAKE_INSTALL_DOCDIR}")
