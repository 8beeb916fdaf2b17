# layer(name DEPS lower layers... [LIBS third-party libraries...])
#
# One static library from src/<name>/, whose include root shows that layer alone: a header of a layer
# that is not among DEPS cannot be found, so an upward include does not compile.
# *_test.cpp, *_bench.cpp and *_fuzz.cpp live beside the code and never enter the library; nor does *_preload.cpp, whose
# functions have the names of others'.
# Folders named cuda/ and *.cu files are built only with CUDA; folders named nocuda/ only without.
function(layer name)
  cmake_parse_arguments(A "" "" "DEPS;LIBS" ${ARGN})
  set(root ${CMAKE_BINARY_DIR}/include_roots/${name})
  file(MAKE_DIRECTORY ${root})
  file(CREATE_LINK ${CMAKE_SOURCE_DIR}/src/${name} ${root}/${name} SYMBOLIC)

  file(GLOB_RECURSE sources CONFIGURE_DEPENDS src/${name}/*.cpp src/${name}/*.cu)
  list(FILTER sources EXCLUDE REGEX "_(test|bench|fuzz|preload)\\.(cpp|cu)$")
  if(SATURATE_WITH_CUDA)
    list(FILTER sources EXCLUDE REGEX "/nocuda/")
  else()
    list(FILTER sources EXCLUDE REGEX "/cuda/|_cuda\\.cpp$|\\.cu$")
  endif()
  if(NOT SATURATE_WITH_MPI)
    list(FILTER sources EXCLUDE REGEX "_mpi\\.cpp$")
  endif()
  if(NOT SATURATE_WITH_GLOO)
    list(FILTER sources EXCLUDE REGEX "_gloo\\.cpp$")
  endif()
  if(NOT SATURATE_WITH_NCCL)
    list(FILTER sources EXCLUDE REGEX "_nccl\\.cpp$")
  endif()

  if(SATURATE_WITH_SQLITE)
    list(FILTER sources EXCLUDE REGEX "_nosqlite\\.cpp$")
  else()
    list(FILTER sources EXCLUDE REGEX "_sqlite\\.cpp$")
  endif()

  if(SATURATE_WITH_LIBEVENT)
    list(FILTER sources EXCLUDE REGEX "_nolibevent\\.cpp$")
  else()
    list(FILTER sources EXCLUDE REGEX "_libevent\\.cpp$")
  endif()

  if(SATURATE_WITH_CUTLASS)
    list(FILTER sources EXCLUDE REGEX "_nocutlass\\.cpp$")
  else()
    list(FILTER sources EXCLUDE REGEX "_cutlass\\.cu$")
  endif()

  if(NOT sources)
    return()
  endif()
  add_library(saturate_${name} STATIC ${sources})
  add_library(saturate::${name} ALIAS saturate_${name})
  foreach(source ${sources})
    if(source MATCHES "_cpu\\.cpp$" AND CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
      set_source_files_properties(${source} PROPERTIES COMPILE_OPTIONS "-march=${SATURATE_CPU_ARCH};-fno-trapping-math"
                                  SKIP_PRECOMPILE_HEADERS ON)
    endif()
    # Chosen at run time (kernels/gemm/packed). GCC 12 takes its own intrinsics for uninitialised (its bug 105593).
    if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64" AND source MATCHES "_(avx512|vnni|bf16|amx)\\.cpp$")
      set(arch_avx512 skylake-avx512)
      set(arch_vnni cascadelake)
      set(arch_bf16 cooperlake)
      set(arch_amx "cascadelake;-mamx-tile;-mamx-int8;-mamx-bf16")
      set_source_files_properties(${source} PROPERTIES COMPILE_OPTIONS
        "-march=${arch_${CMAKE_MATCH_1}};-Wno-uninitialized;$<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>")
    endif()
    if(source MATCHES "_cutlass\\.cu$")
      set_source_files_properties(${source} PROPERTIES COMPILE_OPTIONS "-isystem=${SATURATE_CUTLASS_INCLUDE}")
    endif()
  endforeach()
  set_target_properties(saturate_${name} PROPERTIES EXPORT_NAME ${name} POSITION_INDEPENDENT_CODE ON)
  target_include_directories(saturate_${name} PUBLIC $<BUILD_INTERFACE:${root}>
                             $<BUILD_INTERFACE:${CMAKE_BINARY_DIR}/generated>
                             $<INSTALL_INTERFACE:include/saturate>)
  foreach(dep ${A_DEPS})
    if(TARGET saturate_${dep})
      target_link_libraries(saturate_${name} PUBLIC saturate_${dep})
    endif()
  endforeach()
  target_link_libraries(saturate_${name} PRIVATE $<BUILD_INTERFACE:saturate_flags> ${A_LIBS})
  if(NOT name MATCHES "^(base|runtime|kernels)$")  # whose headers are few
    precompile(saturate_${name} LIBRARY)
  endif()
  set_property(GLOBAL APPEND PROPERTY SATURATE_LAYERS saturate_${name})

  # Every *_bench.cpp or .cu is a program of its own, saturate_<name>_bench, built when asked for.
  file(GLOB_RECURSE benches CONFIGURE_DEPENDS src/${name}/*_bench.cpp src/${name}/*_bench.cu)
  foreach(bench ${benches})
    if(NOT SATURATE_WITH_CUDA AND (bench MATCHES "\\.cu$" OR name STREQUAL "kernels"))
      continue()
    endif()
    get_filename_component(bench_name ${bench} NAME_WE)
    add_executable(saturate_${bench_name} EXCLUDE_FROM_ALL ${bench})
    target_link_libraries(saturate_${bench_name} PRIVATE saturate_${name} saturate_flags ${A_LIBS})
    target_include_directories(saturate_${bench_name} PRIVATE ${CMAKE_SOURCE_DIR}/tests/include)
    set_target_properties(saturate_${bench_name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bench)
  endforeach()

  # Every *_test.cpp of the layer goes into one test program: saturate_<name>_test.
  if(SATURATE_BUILD_TESTS)
    file(GLOB_RECURSE tests CONFIGURE_DEPENDS src/${name}/*_test.cpp)
    if(NOT SATURATE_WITH_CUDA)
      list(FILTER tests EXCLUDE REGEX "_cuda_test\\.cpp$")
    endif()
    if(NOT SATURATE_WITH_SQLITE)
      list(FILTER tests EXCLUDE REGEX "_sqlite_test\\.cpp$")
    endif()
    if(NOT SATURATE_WITH_LIBEVENT)
      list(FILTER tests EXCLUDE REGEX "_libevent_test\\.cpp$")
    endif()
    if(tests)
      saturate_test(saturate_${name}_test SOURCES ${tests} LAYERS ${name} LIBS ${A_LIBS})
    endif()
  endif()
endfunction()

# saturate_test(target SOURCES ... LAYERS ... [LIBS ...]): a GoogleTest program registered with ctest,
# one ctest entry per test, so that a failure names the case.
function(saturate_test target)
  cmake_parse_arguments(T "" "" "SOURCES;LAYERS;LIBS" ${ARGN})
  add_executable(${target} ${T_SOURCES})
  foreach(l ${T_LAYERS})
    target_link_libraries(${target} PRIVATE saturate_${l})
  endforeach()
  target_link_libraries(${target} PRIVATE saturate_flags fmt::fmt GTest::gtest GTest::gtest_main ${T_LIBS})
  target_include_directories(${target} PRIVATE ${CMAKE_SOURCE_DIR}/tests/include)  # <layer>/testing/*.h
  target_compile_definitions(${target} PRIVATE
                             SATURATE_SOURCE_DIR="${CMAKE_SOURCE_DIR}" SATURATE_BINARY_DIR="${CMAKE_BINARY_DIR}")
  set_target_properties(${target} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/test)
  precompile(${target} TEST HEADERS gtest/gtest.h)
  optimise_test(${target})
  gtest_discover_tests(${target} DISCOVERY_MODE PRE_TEST PROPERTIES TIMEOUT 300)
  file(WRITE ${CMAKE_CURRENT_BINARY_DIR}/${target}_labels.cmake
       "include(${CMAKE_SOURCE_DIR}/cmake/test_labels.cmake)\nsaturate_label_tests(\"${T_LAYERS}\" \${${target}_TESTS})\n")
  set_property(DIRECTORY APPEND PROPERTY TEST_INCLUDE_FILES ${CMAKE_CURRENT_BINARY_DIR}/${target}_labels.cmake)
endfunction()
