# SPDX-License-Identifier: Apache-2.0
# What `make install` puts where. All paths are relative to the prefix, so an installed tree may be moved.
include(CMakePackageConfigHelpers)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/lap)
set(pkgconfig_dir ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

install(TARGETS lap_cli RUNTIME)
install(TARGETS lap_shared EXPORT lapTargets)
install(TARGETS lap_static EXPORT lapStaticTargets)
set(no_header "^$")
if(NOT LAP_HAVE_MPI)
  set(no_header "lap_mpi\\.h$")
endif()
install(DIRECTORY include/lap TYPE INCLUDE FILES_MATCHING PATTERN "*.h" REGEX ${no_header} EXCLUDE)
install(FILES LICENSE README.md CHANGELOG.md SECURITY.md TYPE DOC)
install(DIRECTORY docs TYPE DOC)
install(DIRECTORY examples TYPE DOC FILES_MATCHING PATTERN "*.c" PATTERN "*.yaml" PATTERN "*.py")
install(DIRECTORY machines DESTINATION ${CMAKE_INSTALL_DATADIR}/lap)
install(FILES completions/lap.bash DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions RENAME lap)
install(FILES completions/_lap DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/site-functions)

install(EXPORT lapTargets NAMESPACE lap:: DESTINATION ${package_dir})
install(EXPORT lapStaticTargets NAMESPACE lap:: DESTINATION ${package_dir})
configure_package_config_file(cmake/lapConfig.cmake.in lapConfig.cmake
                              INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(lapConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/lapConfig.cmake ${PROJECT_BINARY_DIR}/lapConfigVersion.cmake
              cmake/lapYAML.cmake DESTINATION ${package_dir})

# The static library's users link what the shared one brings along by itself.
list(TRANSFORM CMAKE_DL_LIBS PREPEND -l OUTPUT_VARIABLE dl_link)
string(JOIN " " LAP_PC_PRIVATE_LIBS -lm ${dl_link} ${CMAKE_THREAD_LIBS_INIT} ${LAP_YAML_LINK})
file(RELATIVE_PATH LAP_PC_TO_PREFIX /${pkgconfig_dir} /)
string(REGEX REPLACE "/$" "" LAP_PC_TO_PREFIX "${LAP_PC_TO_PREFIX}")
configure_file(cmake/lap.pc.in lap.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/lap.pc DESTINATION ${pkgconfig_dir})
