# Headers of the standard library, fmt and GoogleTest are most of what a file of this project costs to compile (a small file of
# src/train: 7.6 s, 4.7 s with them compiled before; a test: 12.3 s, 7.3 s; GCC 12, two
# virtual cores of an EPYC, processor time). Files still include what they use: build with
# SATURATE_PCH=OFF, as the sanitizers' presets do, to see that they do.
option(SATURATE_PCH "Compile the headers of the standard library and of GoogleTest once, not for every file" ON)

# precompile(target [LIBRARY | TEST] [HEADERS headers...]): with LIBRARY or TEST headers that all such targets share, else the
# target's own. A target that takes shared ones has their options and definitions, and may have more definitions.
function(precompile target)
  cmake_parse_arguments(P "LIBRARY;TEST" "" "HEADERS" ${ARGN})
  if(NOT SATURATE_PCH)
    return()
  endif()
  # Of strings that are joined GCC 12 says what is not so (its bugs 105329, 105651) where their header was precompiled.
  target_compile_options(${target} PRIVATE $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-array-bounds;-Wno-stringop-overflow;-Wno-stringop-overread>)
  set(headers "")
  foreach(header algorithm atomic chrono condition_variable filesystem fstream functional future map memory mutex numeric
                 optional set span sstream string thread unordered_map variant vector fmt/format.h ${P_HEADERS})
    list(APPEND headers "$<$<COMPILE_LANGUAGE:CXX>:<${header}$<ANGLE-R>>")
  endforeach()
  if(NOT P_LIBRARY AND NOT P_TEST)
    target_precompile_headers(${target} PRIVATE ${headers})
    return()
  endif()
  set(shared saturate_precompiled)
  if(P_TEST)
    set(shared saturate_precompiled_for_tests)
  endif()
  if(NOT TARGET ${shared})
    set(nothing ${CMAKE_BINARY_DIR}/generated/${shared}.cpp)
    file(CONFIGURE OUTPUT ${nothing} CONTENT "// Of cmake/precompiled.cmake: a target has a source.\n")
    add_library(${shared} OBJECT ${nothing})
    target_link_libraries(${shared} PRIVATE saturate_flags fmt::fmt)
    if(P_TEST)
      target_link_libraries(${shared} PRIVATE GTest::gtest)
      optimise_test(${shared})
    else()
      set_target_properties(${shared} PROPERTIES POSITION_INDEPENDENT_CODE ON)
    endif()
    target_precompile_headers(${shared} PRIVATE ${headers})
  endif()
  target_precompile_headers(${target} REUSE_FROM ${shared})
endfunction()

# A test runs once: what the compiler optimises takes longer than what it saves.
function(optimise_test target)
  target_compile_options(${target} PRIVATE $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CONFIG:Release>>:-O1>)
endfunction()
