# SPDX-License-Identifier: Apache-2.0
# lap_check_listed(FOLDER): every source below FOLDER is named in its CMakeLists.txt. A new file that is in no list would be left out without a
# word, until the linker misses a function.
function(lap_check_listed folder)
  file(GLOB_RECURSE sources RELATIVE ${folder} CONFIGURE_DEPENDS ${folder}/*.c ${folder}/*.cu)
  file(READ ${folder}/CMakeLists.txt lists)
  foreach(source ${sources})
    string(FIND "${lists}" "${source}" place)
    if(place EQUAL -1)
      message(FATAL_ERROR "${source} is in no list of ${folder}/CMakeLists.txt: add it there, or remove the file")
    endif()
  endforeach()
endfunction()
