# embed_text(target file HEADER header NAME namespace::symbol): puts the text of `file` into `target` as the
# `const char* const` that `header` declares, for code that is compiled at run time. Made again when `file` changes.
function(embed_text target file)
  cmake_parse_arguments(E "" "HEADER;NAME" "" ${ARGN})
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/${file})
  file(READ ${CMAKE_SOURCE_DIR}/${file} text)
  get_filename_component(name ${file} NAME_WE)
  set(out ${CMAKE_BINARY_DIR}/generated/embedded/${name}.cpp)
  file(CONFIGURE OUTPUT ${out} @ONLY CONTENT
"// Generated from @file@ by cmake/embed.cmake.
#include \"@E_HEADER@\"

const char* const @E_NAME@ = R\"SATURATE_TEXT(@text@)SATURATE_TEXT\";
")
  target_sources(${target} PRIVATE ${out})
endfunction()
