# SPDX-License-Identifier: Apache-2.0
# What this machine offers besides the necessary. Nothing here is required, enables a language or stops the build;
# what is found goes into lap_config.h, for `lap info`.
set(LAP_HAVE_MPI 0)
set(LAP_MPI_VERSION "")
# Not find_package(MPI), which stops when mpicc is there without its headers, as Debian's openmpi-bin leaves it.
find_program(LAP_MPICC mpicc)
mark_as_advanced(LAP_MPICC)
if(LAP_MPICC)
  file(WRITE ${PROJECT_BINARY_DIR}/CMakeFiles/lap_mpi.c "#include <mpi.h>\n")
  execute_process(COMMAND ${LAP_MPICC} -E -dM ${PROJECT_BINARY_DIR}/CMakeFiles/lap_mpi.c
                  OUTPUT_VARIABLE macros RESULT_VARIABLE failed ERROR_QUIET)
  if(NOT failed AND macros MATCHES "#define MPI_VERSION +([0-9]+)")
    set(LAP_HAVE_MPI 1)
    set(LAP_MPI_VERSION ${CMAKE_MATCH_1})
    if(macros MATCHES "#define MPI_SUBVERSION +([0-9]+)")
      string(APPEND LAP_MPI_VERSION ".${CMAKE_MATCH_1}")
    endif()
  endif()
endif()

set(LAP_HAVE_CUDA 0)
set(LAP_CUDA_VERSION "")
find_package(CUDAToolkit QUIET)
if(CUDAToolkit_FOUND)
  set(LAP_HAVE_CUDA 1)
  set(LAP_CUDA_VERSION "${CUDAToolkit_VERSION}")
endif()

set(LAP_HAVE_NCCL 0)
set(LAP_NCCL_VERSION "")
find_path(LAP_NCCL_INCLUDE nccl.h HINTS "${NCCL_ROOT}" "$ENV{NCCL_ROOT}" ${CUDAToolkit_INCLUDE_DIRS}
          PATH_SUFFIXES include)
find_library(LAP_NCCL_LIBRARY NAMES nccl libnccl.so.2
             HINTS "${NCCL_ROOT}" "$ENV{NCCL_ROOT}" "${CUDAToolkit_LIBRARY_DIR}"
             PATH_SUFFIXES lib lib64)
mark_as_advanced(LAP_NCCL_INCLUDE LAP_NCCL_LIBRARY)
if(LAP_NCCL_INCLUDE AND LAP_NCCL_LIBRARY)
  file(STRINGS "${LAP_NCCL_INCLUDE}/nccl.h" lines REGEX "#define NCCL_(MAJOR|MINOR|PATCH) +[0-9]+")
  string(REGEX MATCHALL "[0-9]+" numbers "${lines}")
  set(LAP_HAVE_NCCL 1)
  list(JOIN numbers "." LAP_NCCL_VERSION)
endif()

# The header of OpenBLAS says which version it is; Debian's libraries agree with their headers.
set(LAP_OPENBLAS_VERSION "${LAP_PC_OPENBLAS_VERSION}")
if(NOT LAP_OPENBLAS_VERSION AND EXISTS "${LAP_OPENBLAS_INCLUDE}/openblas_config.h")
  file(STRINGS "${LAP_OPENBLAS_INCLUDE}/openblas_config.h" lines REGEX "OPENBLAS_VERSION")
  string(REGEX MATCH "[0-9]+(\\.[0-9]+)+" LAP_OPENBLAS_VERSION "${lines}")
endif()
if(NOT LAP_OPENBLAS_VERSION)
  set(LAP_OPENBLAS_VERSION "unknown")
endif()
set(LAP_COMPILER "${CMAKE_C_COMPILER_ID} ${CMAKE_C_COMPILER_VERSION}")
