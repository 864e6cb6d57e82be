# SPDX-License-Identifier: Apache-2.0
# Makes the target lap::mpi when an MPI compiler wrapper and its headers are there, and does nothing when they are not.
# Whoever links lap::mpi links MPI: tests that use it themselves. The library takes only its headers.
# LAP_MPICC names the wrapper: mpicc.openmpi and mpicc.mpich are Debian's two. What it would add to a compiler's command
# line is taken from it, so that Open MPI, MPICH and their kin need no rules of their own.
# Not find_package(MPI), which stops when mpicc is there without its headers, as Debian's openmpi-bin leaves it.
find_program(LAP_MPICC mpicc)
mark_as_advanced(LAP_MPICC)
set(LAP_MPI_VERSION "")
if(LAP_MPICC AND NOT TARGET lap::mpi)
  execute_process(COMMAND ${LAP_MPICC} -show OUTPUT_VARIABLE mpi_line RESULT_VARIABLE mpi_failed
                  ERROR_QUIET OUTPUT_STRIP_TRAILING_WHITESPACE)
  execute_process(COMMAND ${CMAKE_COMMAND} -E echo "#include <mpi.h>"
                  COMMAND ${LAP_MPICC} -E -dM -x c -
                  OUTPUT_VARIABLE mpi_macros RESULT_VARIABLE mpi_no_header ERROR_QUIET)
  if(NOT mpi_failed AND NOT mpi_no_header AND mpi_macros MATCHES "#define MPI_VERSION +([0-9]+)")
    set(LAP_MPI_VERSION ${CMAKE_MATCH_1})
    if(mpi_macros MATCHES "#define MPI_SUBVERSION +([0-9]+)")
      string(APPEND LAP_MPI_VERSION ".${CMAKE_MATCH_1}")
    endif()
    # Open MPI of its own makers says it in two words, of which neither is anything alone.
    string(REPLACE "-Wl,-rpath -Wl," "-Wl,-rpath," mpi_line "${mpi_line}")
    separate_arguments(mpi_words UNIX_COMMAND "${mpi_line}")
    set(LAP_MPI_INCLUDE ${mpi_words})
    list(FILTER LAP_MPI_INCLUDE INCLUDE REGEX "^-I.")
    list(TRANSFORM LAP_MPI_INCLUDE REPLACE "^-I" "")
    set(LAP_MPI_LINK ${mpi_words})
    list(FILTER LAP_MPI_LINK INCLUDE REGEX "^-(L.|l.|Wl,-rpath|Wl,--enable-new-dtags)")
    add_library(lap::mpi INTERFACE IMPORTED)
    target_include_directories(lap::mpi SYSTEM INTERFACE ${LAP_MPI_INCLUDE})
    target_link_libraries(lap::mpi INTERFACE ${LAP_MPI_LINK})
  endif()
endif()
