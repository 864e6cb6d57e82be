# SPDX-License-Identifier: Apache-2.0
# Which commit this is, and of which day, for what the command prints: as git says at each build, so that it never is an older one;
# "unknown" and the day of the build (or SOURCE_DATE_EPOCH) for sources that are no repository of their own, such as an archive. Included, it defines the target lap_commit, which runs this
# file as a script: that writes generated/lap_commit.h, if it differs.
if(NOT CMAKE_SCRIPT_MODE_FILE)
  find_package(Git QUIET)
  add_custom_target(lap_commit
    COMMAND ${CMAKE_COMMAND} -DSOURCE=${PROJECT_SOURCE_DIR} -DHEADER=${PROJECT_BINARY_DIR}/generated/lap_commit.h
            -DGIT=${GIT_EXECUTABLE} -P ${CMAKE_CURRENT_LIST_FILE}
    BYPRODUCTS ${PROJECT_BINARY_DIR}/generated/lap_commit.h
    COMMENT "" VERBATIM)
  return()
endif()

set(LAP_COMMIT unknown)
string(TIMESTAMP LAP_DATE "%Y-%m-%d" UTC)
if(GIT AND EXISTS ${SOURCE}/.git)
  # No optional locks: looking must not write to the repository.
  execute_process(COMMAND ${GIT} --no-optional-locks -C ${SOURCE} describe --always --dirty --abbrev=12
                  OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE RESULT_VARIABLE failed ERROR_QUIET)
  if(NOT failed AND commit MATCHES "^[A-Za-z0-9._/+-]+$")
    set(LAP_COMMIT ${commit})
    execute_process(COMMAND ${GIT} --no-optional-locks -C ${SOURCE} log -1 --format=%cs
                    OUTPUT_VARIABLE LAP_DATE OUTPUT_STRIP_TRAILING_WHITESPACE)
  endif()
endif()
configure_file(${SOURCE}/cmake/lap_commit.h.in ${HEADER} @ONLY)
