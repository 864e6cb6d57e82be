# SPDX-License-Identifier: Apache-2.0
# Makes the target lap::yaml when libyaml and its header are there, and does nothing when they are not.
# Used by the build and, installed beside lapConfig.cmake, by whoever links the static library.
# CMAKE_PREFIX_PATH says where to look first; then pkg-config is asked, then the usual places.
find_package(PkgConfig QUIET)
if(PkgConfig_FOUND)
  pkg_check_modules(LAP_PC_YAML QUIET yaml-0.1)
endif()
find_path(LAP_YAML_INCLUDE yaml.h HINTS ${LAP_PC_YAML_INCLUDE_DIRS})
find_library(LAP_YAML_LIBRARY yaml HINTS ${LAP_PC_YAML_LIBRARY_DIRS})
mark_as_advanced(LAP_YAML_INCLUDE LAP_YAML_LIBRARY)

if(LAP_YAML_INCLUDE AND LAP_YAML_LIBRARY AND NOT TARGET lap::yaml)
  add_library(lap::yaml INTERFACE IMPORTED)
  target_include_directories(lap::yaml INTERFACE "${LAP_YAML_INCLUDE}")
  target_link_libraries(lap::yaml INTERFACE "${LAP_YAML_LIBRARY}")
endif()
