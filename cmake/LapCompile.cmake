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
