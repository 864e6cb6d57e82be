# SPDX-License-Identifier: Apache-2.0
# What this machine offers besides the necessary. Nothing here is required unless it is asked for, or enables a
# language; what is found goes into lap_config.h, for `lap info`.
set(LAP_MPI AUTO CACHE STRING "The transport over MPI: AUTO (when MPI is there), ON (it must be) or OFF")
set_property(CACHE LAP_MPI PROPERTY STRINGS AUTO ON OFF)
set(LAP_HAVE_MPI 0)
set(LAP_MPI_VERSION "")
if(LAP_MPI)
  include(cmake/lapMPI.cmake)
endif()
if(TARGET lap::mpi)
  set(LAP_HAVE_MPI 1)
  # The launcher of the same MPI: mpicc.mpich has an mpirun.mpich beside it.
  get_filename_component(mpi_dir ${LAP_MPICC} DIRECTORY)
  get_filename_component(mpi_suffix ${LAP_MPICC} LAST_EXT)
  find_program(LAP_MPIRUN NAMES mpirun${mpi_suffix} mpiexec${mpi_suffix} HINTS ${mpi_dir})
  mark_as_advanced(LAP_MPIRUN)
elseif(LAP_MPI AND NOT LAP_MPI STREQUAL "AUTO")
  message(FATAL_ERROR "LAP_MPI is ${LAP_MPI}, but there is no mpicc with its header mpi.h: install "
                      "libopenmpi-dev or libmpich-dev, set LAP_MPICC, or leave LAP_MPI at AUTO.")
endif()

set(LAP_YAML AUTO CACHE STRING "Rules of overlap from YAML files: AUTO (when libyaml is there), ON (it must be) or OFF")
set_property(CACHE LAP_YAML PROPERTY STRINGS AUTO ON OFF)
set(LAP_HAVE_YAML 0)
set(LAP_YAML_VERSION "")
if(LAP_YAML)
  include(cmake/lapYAML.cmake)
endif()
if(TARGET lap::yaml)
  set(LAP_HAVE_YAML 1)
  set(LAP_YAML_VERSION "${LAP_PC_YAML_VERSION}")
  set(LAP_YAML_LINK -lyaml)
elseif(LAP_YAML AND NOT LAP_YAML STREQUAL "AUTO")
  message(FATAL_ERROR "LAP_YAML is ${LAP_YAML}, but there is no libyaml with its header yaml.h: install libyaml-dev, "
                      "or leave LAP_YAML at AUTO.")
endif()

# CUDA: nvcc and headers, to compile. The driver and cuBLASLt are loaded when a GPU is used, and linked by nobody.
set(LAP_CUDA AUTO CACHE STRING "The device cuda: AUTO (when nvcc is there), ON (it must be) or OFF")
set_property(CACHE LAP_CUDA PROPERTY STRINGS AUTO ON OFF)
set(LAP_HAVE_CUDA 0)
set(LAP_CUDA_VERSION "")
set(LAP_CUDA_LIBRARY_DIR "")
if(LAP_CUDA)
  find_package(CUDAToolkit QUIET)
  find_path(LAP_CUDA_INCLUDE cublasLt.h HINTS ${CUDAToolkit_INCLUDE_DIRS} NO_DEFAULT_PATH)
  mark_as_advanced(LAP_CUDA_INCLUDE)
endif()
if(CUDAToolkit_FOUND AND CUDAToolkit_NVCC_EXECUTABLE AND LAP_CUDA_INCLUDE AND EXISTS "${LAP_CUDA_INCLUDE}/cudaTypedefs.h"
   AND CUDAToolkit_VERSION VERSION_GREATER_EQUAL 12.5)
  set(LAP_HAVE_CUDA 1)
  set(LAP_CUDA_VERSION "${CUDAToolkit_VERSION}")
  set(LAP_CUDA_LIBRARY_DIR "${CUDAToolkit_LIBRARY_DIR}")
elseif(LAP_CUDA AND NOT LAP_CUDA STREQUAL "AUTO")
  message(FATAL_ERROR "LAP_CUDA is ${LAP_CUDA}, but there is no nvcc of CUDA 12.5 or later with cublasLt.h and "
                      "cudaTypedefs.h: install the CUDA toolkit, set CUDAToolkit_ROOT, or leave LAP_CUDA at AUTO.")
endif()

# NVTX, for profilers: nothing but headers, of the CUDA toolkit or by themselves.
set(LAP_HAVE_NVTX 0)
if(LAP_CUDA)
  find_path(LAP_NVTX_INCLUDE nvtx3/nvToolsExt.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
  mark_as_advanced(LAP_NVTX_INCLUDE)
  if(LAP_NVTX_INCLUDE)
    set(LAP_HAVE_NVTX 1)
  endif()
endif()

# NCCL: its header, to compile. The library is loaded when a buffer over it is made.
set(LAP_HAVE_NCCL 0)
set(LAP_NCCL_VERSION "")
find_path(LAP_NCCL_INCLUDE nccl.h HINTS "${NCCL_ROOT}" "$ENV{NCCL_ROOT}" ${CUDAToolkit_INCLUDE_DIRS}
          PATH_SUFFIXES include)
mark_as_advanced(LAP_NCCL_INCLUDE)
if(LAP_HAVE_CUDA AND LAP_NCCL_INCLUDE)
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
