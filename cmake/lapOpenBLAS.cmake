# SPDX-License-Identifier: Apache-2.0
# Makes the target lap::openblas when OpenBLAS and its header are there, and does nothing when they are not.
# Whoever links lap::openblas links it: a test. The library takes only its header.
# OpenBLAS_ROOT or CMAKE_PREFIX_PATH say where to look first; then pkg-config is asked, then the usual places.
find_package(PkgConfig QUIET)
if(PkgConfig_FOUND)
  pkg_check_modules(LAP_PC_OPENBLAS QUIET openblas)
endif()
find_path(LAP_OPENBLAS_INCLUDE cblas.h
          HINTS "${OpenBLAS_ROOT}" "$ENV{OpenBLAS_ROOT}" ${LAP_PC_OPENBLAS_INCLUDE_DIRS}
          PATH_SUFFIXES include include/openblas openblas openblas-pthread)
find_library(LAP_OPENBLAS_LIBRARY openblas
             HINTS "${OpenBLAS_ROOT}" "$ENV{OpenBLAS_ROOT}" ${LAP_PC_OPENBLAS_LIBRARY_DIRS}
             PATH_SUFFIXES lib lib64 openblas-pthread)
mark_as_advanced(LAP_OPENBLAS_INCLUDE LAP_OPENBLAS_LIBRARY)
# Debian has it in a folder of its own and, by a link that its administrator chooses, where the loader looks anyway. Who links
# it by that link needs no RUNPATH.
foreach(dir IN LISTS CMAKE_C_IMPLICIT_LINK_DIRECTORIES)
  get_filename_component(name "${LAP_OPENBLAS_LIBRARY}" NAME)
  file(REAL_PATH "${dir}/${name}" usual)
  file(REAL_PATH "${LAP_OPENBLAS_LIBRARY}" found)
  if(LAP_OPENBLAS_LIBRARY AND EXISTS "${dir}/${name}" AND usual STREQUAL found)
    set(LAP_OPENBLAS_LIBRARY "${dir}/${name}")
    break()
  endif()
endforeach()

if(LAP_OPENBLAS_INCLUDE AND LAP_OPENBLAS_LIBRARY AND NOT TARGET lap::openblas)
  add_library(lap::openblas INTERFACE IMPORTED)
  target_include_directories(lap::openblas INTERFACE "${LAP_OPENBLAS_INCLUDE}")
  target_link_libraries(lap::openblas INTERFACE "${LAP_OPENBLAS_LIBRARY}")
endif()
