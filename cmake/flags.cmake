# Warnings are errors on host code; -Wrestrict of GCC 12 is wrong about std::string (its bug 105651).
# -fno-math-errno lets the compiler vectorise sqrt and friends; no other relaxation of floating point,
# so that a run is a function of (configuration, data, seed).
#
# Most of the GPU code in an object is what only profilers read (PTX text and line numbers, of -lineinfo), so it is
# packed (zstd) and unpacked by the driver when a kernel of its file is first used: a tenth of the bytes, with -lineinfo.
# Warnings are errors with the compilers that continuous integration has; newer ones warn about more, and a user's build
# must not end by that.
set(warnings_are_errors -Werror)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_GREATER_EQUAL 13)
  set(warnings_are_errors "")
endif()
add_library(saturate_flags INTERFACE)
target_compile_options(saturate_flags INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wshadow -Wconversion -Wno-sign-conversion ${warnings_are_errors} -fno-math-errno>
  $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-restrict>
  $<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wall,-Wextra --expt-relaxed-constexpr -lineinfo -Xptxas=-warn-spills
                              --compress-mode=size>)
target_compile_definitions(saturate_flags INTERFACE OMPI_SKIP_MPICXX)
# Undefined behaviour ends the program: UBSan would otherwise print it and the test would pass.
# -O1 -g1 (after what the build type says) halves the time of the build; reports keep their line numbers.
if(SATURATE_SANITIZE)
  add_compile_definitions(_GLIBCXX_ASSERTIONS)
  add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-fsanitize=${SATURATE_SANITIZE}>
                      $<$<COMPILE_LANGUAGE:CXX>:-fno-sanitize-recover=all>
                      $<$<COMPILE_LANGUAGE:CXX>:-fno-omit-frame-pointer> $<$<COMPILE_LANGUAGE:CXX>:-O1>
                      $<$<COMPILE_LANGUAGE:CXX>:-g1>
                      # GCC's flow analysis loses its way in instrumented code; other builds keep the warning.
                      $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-maybe-uninitialized>)
  add_link_options(-fsanitize=${SATURATE_SANITIZE})
endif()

# CPU kernels (*_cpu.cpp) are built for x86-64-v3 (AVX2 and FMA, Haswell 2013 and later); the program
# checks for it at start. -fno-trapping-math (nobody reads the exception flags; values stay the same) lets
# loops with a choice per element vectorise: GELU is 5 to 7 times faster. SATURATE_CPU_ARCH=native is faster on one machine and may not run on another.
set(SATURATE_CPU_ARCH "x86-64-v3" CACHE STRING "-march for the CPU kernels")
