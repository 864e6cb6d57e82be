# SPDX-License-Identifier: Apache-2.0
# Pages of the manual, as the command itself prints them. Included, it defines the target lap_man, which runs this file as a
# script whenever the command was built anew. Programs that cannot run here, or not surely, make no pages: those of another
# machine, and those built for a sanitizer.
if(NOT CMAKE_SCRIPT_MODE_FILE)
  if(CMAKE_CROSSCOMPILING OR LAP_SANITIZE OR LAP_FUZZ)
    return()
  endif()
  set(man_folder ${PROJECT_BINARY_DIR}/man)
  add_custom_command(OUTPUT ${man_folder}/man1/lap.1
    COMMAND ${CMAKE_COMMAND} -DLAP=$<TARGET_FILE:lap_cli> -DFOLDER=${man_folder}/man1 -P ${CMAKE_CURRENT_LIST_FILE}
    DEPENDS lap_cli ${CMAKE_CURRENT_LIST_FILE}
    COMMENT "Pages of the manual" VERBATIM)
  add_custom_target(lap_man ALL DEPENDS ${man_folder}/man1/lap.1)
  install(DIRECTORY ${man_folder}/ DESTINATION ${CMAKE_INSTALL_MANDIR})
  return()
endif()

# page(NAME [COMMAND]): writes NAME.1.
function(page name)
  execute_process(COMMAND ${LAP} ${ARGN} --help=man OUTPUT_FILE ${FOLDER}/${name}.1 COMMAND_ERROR_IS_FATAL ANY)
endfunction()

file(REMOVE_RECURSE ${FOLDER})
file(MAKE_DIRECTORY ${FOLDER})
execute_process(COMMAND ${LAP} --help=words OUTPUT_VARIABLE words COMMAND_ERROR_IS_FATAL ANY)
string(REGEX MATCHALL "[^\n]+" words "${words}")
list(FILTER words EXCLUDE REGEX "^-")
foreach(word IN LISTS words)
  page(lap-${word} ${word})
endforeach()
page(lap)
