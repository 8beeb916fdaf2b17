# gpu_architectures(out): what to build for when nobody said so. The environment variable
# SATURATE_CUDA_ARCHITECTURES; for the Python package the GPU of this machine, since it is built where it is used;
# all that the project supports otherwise: code for 8.0 runs on 8.6 and 8.9 as well.
function(gpu_architectures out)
  set(found "75-real;80-real;90a-real")
  if(DEFINED ENV{SATURATE_CUDA_ARCHITECTURES})
    set(found $ENV{SATURATE_CUDA_ARCHITECTURES})
  elseif(SATURATE_PYTHON)
    find_program(NVIDIA_SMI nvidia-smi)
    if(NVIDIA_SMI)
      execute_process(COMMAND ${NVIDIA_SMI} --query-gpu=compute_cap --format=csv,noheader
                      OUTPUT_VARIABLE capability RESULT_VARIABLE failed ERROR_QUIET)
      if(NOT failed AND capability MATCHES "^([0-9]+)\\.([0-9]+)")
        set(found ${CMAKE_MATCH_1}${CMAKE_MATCH_2}-real)
        string(REPLACE 90-real 90a-real found ${found})  # Hopper's own instructions
      endif()
    endif()
  endif()
  set(${out} "${found}" CACHE STRING "GPU architectures" FORCE)
endfunction()
