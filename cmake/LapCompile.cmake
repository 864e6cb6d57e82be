# SPDX-License-Identifier: Apache-2.0
# lap_compile: how every C file of this tree is compiled. Linked privately, never exported.
add_library(lap_compile INTERFACE)
target_compile_definitions(lap_compile INTERFACE _GNU_SOURCE)
target_compile_options(lap_compile INTERFACE -Wall -Wextra -Wpedantic)
if(LAP_WERROR)
  target_compile_options(lap_compile INTERFACE -Werror)
  if(CMAKE_C_COMPILER_ID STREQUAL "GNU")
    # Whether gcc sees this one depends on its version and on what it inlined: shown, but no reason to fail.
    target_compile_options(lap_compile INTERFACE -Wno-error=maybe-uninitialized)
  endif()
endif()

if(LAP_SANITIZE STREQUAL "address")
  set(sanitizers address,undefined)
elseif(LAP_SANITIZE STREQUAL "thread")
  set(sanitizers thread)
elseif(LAP_SANITIZE)
  message(FATAL_ERROR "LAP_SANITIZE is '${LAP_SANITIZE}': expected address or thread.")
endif()
if(LAP_SANITIZE)
  target_compile_options(lap_compile INTERFACE -O1 -fsanitize=${sanitizers} -fno-sanitize-recover=all
                                               -fno-omit-frame-pointer)
  target_link_options(lap_compile INTERFACE -fsanitize=${sanitizers})
endif()

# Hardening: what an overflow or a wild write could use is taken away where the compiler and the linker can. Sanitizers find
# such mistakes themselves, and some of these flags hide them.
option(LAP_HARDENING "Stack protector, FORTIFY_SOURCE, full RELRO, BIND_NOW and position-independent programs" ON)
if(LAP_HARDENING AND NOT LAP_SANITIZE AND NOT LAP_FUZZ)
  include(CheckCCompilerFlag)
  include(CheckCSourceCompiles)
  include(CheckLinkerFlag)
  include(CheckPIESupported)
  set(CMAKE_REQUIRED_FLAGS -Werror) # Clang only warns of those that it does not have for a processor.
  foreach(flag -fstack-protector-strong -fstack-clash-protection)
    string(MAKE_C_IDENTIFIER "LAP_HAVE${flag}" have)
    check_c_compiler_flag(${flag} ${have})
    if(${have})
      target_compile_options(lap_compile INTERFACE ${flag})
    endif()
  endforeach()
  # It needs optimisation. A compiler or a packager who has set it already may have set a higher level.
  set(CMAKE_REQUIRED_FLAGS -O2)
  check_c_source_compiles("#ifdef _FORTIFY_SOURCE
    int main(void) { return 0; }
    #else
    #error
    #endif" LAP_FORTIFIED_ALREADY)
  unset(CMAKE_REQUIRED_FLAGS)
  if(NOT LAP_FORTIFIED_ALREADY)
    target_compile_definitions(lap_compile INTERFACE
      $<$<CONFIG:Release,RelWithDebInfo,MinSizeRel>:_FORTIFY_SOURCE=2>)
  endif()
  foreach(flag relro now noexecstack)
    check_linker_flag(C -Wl,-z,${flag} LAP_HAVE_Z_${flag})
    if(LAP_HAVE_Z_${flag})
      target_link_options(lap_compile INTERFACE -Wl,-z,${flag})
    endif()
  endforeach()
  check_pie_supported(LANGUAGES C)
  set(CMAKE_POSITION_INDEPENDENT_CODE ON)
endif()

# lap_plain_rpath(TARGET): what is installed has one RUNPATH, in the build folder and after: the folders of the libraries that
# were found in no usual place. Otherwise CMake ends the one of the build folder with a colon, as room for another, and to
# the loader an empty entry is the current directory.
function(lap_plain_rpath target)
  set_target_properties(${target} PROPERTIES BUILD_WITH_INSTALL_RPATH ON INSTALL_RPATH_USE_LINK_PATH ON)
endfunction()

if(LAP_FUZZ)
  if(NOT CMAKE_C_COMPILER_ID STREQUAL "Clang" OR LAP_SANITIZE)
    message(FATAL_ERROR "LAP_FUZZ needs clang, and has sanitizers of its own: -DCMAKE_C_COMPILER=clang, no LAP_SANITIZE.")
  endif()
  target_compile_options(lap_compile INTERFACE -O1 -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=all
                                               -fno-omit-frame-pointer)
  target_link_options(lap_compile INTERFACE -fsanitize=address,undefined)
endif()
