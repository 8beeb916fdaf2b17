// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>

#include "observe/trace/trace.h"

namespace saturate::observe {

// The rates of copies between the host and the first GPU that a CUDA program started here would
// see. Measured for the driver and the GPUs visible the first three times (about 0.1 s, and the
// start of CUDA before it), of which the fastest count, and then read from `cache_folder`; ""
// keeps nothing. The measurement runs in a process of its own that ends before this returns, so
// that no program finds CUDA or memory of the GPU in use. `machine` names driver and GPUs. Not
// known, and `problem` says why, when CUDA does not answer within 20 s or refuses.
CopyRates machine_copy_rates(const std::string& machine, const std::string& cache_folder,
                             std::string& problem);

// The same without the cache: 64 MiB each way, pinned and pageable, the best of several copies. In
// a child of this process, by libcuda.so.1 or the library that SATURATE_CUDA_DRIVER names.
CopyRates measure_copy_rates(std::string& problem);

}  // namespace saturate::observe
