// SPDX-License-Identifier: Apache-2.0
// Included by CUDA sources only.
#pragma once
#include <cuda_runtime.h>

#include "runtime/context.h"

namespace saturate::cuda {

// Throws Error{device} with the call's text and the code's name after clearing the sticky error.
void check(cudaError_t code, const char* call);

inline cudaStream_t stream_of(const Context& c) { return static_cast<cudaStream_t>(c.stream); }

}  // namespace saturate::cuda

#define SAT_CUDA(call) ::saturate::cuda::check((call), #call)
// After a kernel launch: reports a bad launch configuration at once.
#define SAT_CUDA_LAUNCHED(name) ::saturate::cuda::check(cudaGetLastError(), name)
