# The headers of CUTLASS 4 (CuTe), which one rung of the attention ladder is written with (kernels/attention/cute). They
# are no part of this repository and nothing else needs them: without them the rung is left out.
#
# AUTO looks into the folder that the environment variable CUTLASS_PATH names, then for the package of
# `pip install nvidia-cutlass` in the python3 of PATH. Sets SATURATE_WITH_CUTLASS and SATURATE_CUTLASS_INCLUDE.
set(SATURATE_CUTLASS AUTO CACHE STRING "CUTLASS headers: AUTO, OFF, or a folder with include/cute/tensor.hpp")
set(SATURATE_WITH_CUTLASS OFF)
set(SATURATE_CUTLASS_INCLUDE "")
if(SATURATE_WITH_CUDA AND NOT SATURATE_CUTLASS STREQUAL "OFF")
  set(folders ${SATURATE_CUTLASS})
  if(SATURATE_CUTLASS STREQUAL "AUTO")
    execute_process(COMMAND python3 -c "import importlib.util as u; print(u.find_spec('cutlass_library').submodule_search_locations[0])"
                    OUTPUT_VARIABLE package OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
    set(folders $ENV{CUTLASS_PATH} ${package}/source)
  endif()
  foreach(folder ${folders})
    foreach(include ${folder}/include ${folder} ${folder}/cutlass_library/source/include)
      if(NOT SATURATE_WITH_CUTLASS AND EXISTS ${include}/cute/tensor.hpp)
        set(SATURATE_WITH_CUTLASS ON)
        set(SATURATE_CUTLASS_INCLUDE ${include})
      endif()
    endforeach()
  endforeach()
  if(NOT SATURATE_WITH_CUTLASS AND NOT SATURATE_CUTLASS STREQUAL "AUTO")
    message(FATAL_ERROR "SATURATE_CUTLASS=${SATURATE_CUTLASS} has no include/cute/tensor.hpp; give the folder of CUTLASS 4, AUTO or OFF")
  endif()
endif()
message(STATUS "saturate: CUTLASS ${SATURATE_WITH_CUTLASS} ${SATURATE_CUTLASS_INCLUDE}")
