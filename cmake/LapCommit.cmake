# SPDX-License-Identifier: Apache-2.0
# Which commit this is, for what the command prints: as git says when CMake configures; "unknown" for sources that are no
# repository of their own, such as an archive.
set(LAP_COMMIT unknown)
find_package(Git QUIET)
if(GIT_FOUND AND EXISTS ${PROJECT_SOURCE_DIR}/.git)
  # No optional locks: looking must not write to the repository.
  execute_process(COMMAND ${GIT_EXECUTABLE} --no-optional-locks -C ${PROJECT_SOURCE_DIR} describe --always --dirty
                          --abbrev=12
                  OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE RESULT_VARIABLE failed ERROR_QUIET)
  if(NOT failed AND commit MATCHES "^[A-Za-z0-9._/+-]+$")
    set(LAP_COMMIT ${commit})
  endif()
endif()
configure_file(cmake/lap_commit.h.in generated/lap_commit.h @ONLY)
