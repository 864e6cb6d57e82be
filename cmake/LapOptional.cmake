# SPDX-License-Identifier: Apache-2.0
# What this machine offers besides the necessary. Nothing here is required, enables a language or stops the build;
# what is found goes into lap_config.h, for `lap info`.
set(LAP_HAVE_MPI 0)
set(LAP_MPI_VERSION "")
set(CMAKE_MESSAGE_LOG_LEVEL NOTICE) # FindMPI talks even when asked to be quiet.
find_package(MPI QUIET COMPONENTS C)
unset(CMAKE_MESSAGE_LOG_LEVEL)
if(MPI_C_FOUND)
  set(LAP_HAVE_MPI 1)
  set(LAP_MPI_VERSION "${MPI_C_VERSION}")
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
