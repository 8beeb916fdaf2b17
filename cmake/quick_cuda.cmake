# SATURATE_CUDA_QUICK=ON: GPU code is compiled with little optimisation, in half of the time, to see that it compiles
# and links; such kernels are slow. What tools/strict_cuda.sh looks at (registers of the Hopper kernels) stays as it is.
option(SATURATE_CUDA_QUICK "Compile GPU code quickly, not to be run" OFF)

# quick_cuda(TARGET): after all of its sources are known.
function(quick_cuda target)
  if(NOT SATURATE_CUDA_QUICK)
    return()
  endif()
  get_target_property(sources ${target} SOURCES)
  list(FILTER sources INCLUDE REGEX "\\.cu$")
  list(FILTER sources EXCLUDE REGEX "/gemm/(wgmma|grouped)/|/attention/(hopper|wide|cute)/")
  set_source_files_properties(${sources} PROPERTIES COMPILE_OPTIONS "-Xcicc=-O1;-Xptxas=-O1")
endfunction()
