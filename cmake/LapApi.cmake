# SPDX-License-Identifier: Apache-2.0
# The reference of the API, made from the public headers where there is Python 3.
find_package(Python3 QUIET COMPONENTS Interpreter)
if(Python3_Interpreter_FOUND)
  set(api_folder ${PROJECT_BINARY_DIR}/docs/api)
  file(GLOB public_headers CONFIGURE_DEPENDS include/lap/*.h)
  add_custom_command(OUTPUT ${api_folder}/README.md
    COMMAND ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/scripts/api.py ${PROJECT_SOURCE_DIR}/include/lap ${api_folder}
    DEPENDS ${PROJECT_SOURCE_DIR}/scripts/api.py ${public_headers}
    COMMENT "Reference of the API" VERBATIM)
  add_custom_target(lap_api ALL DEPENDS ${api_folder}/README.md)
  install(DIRECTORY ${api_folder} DESTINATION ${CMAKE_INSTALL_DOCDIR}/docs)
endif()
