// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "observe/read/input.h"
#include "observe/trace/trace.h"

namespace saturate::observe {

// Reads what torch.profiler exports (Chrome trace JSON of Kineto): kernels, copies, fills, CUDA
// calls, the profiler's step marks, user annotations and the waits of the data loader. Other events
// are passed over. Memory     what the returned records need, and no more than 1 MiB beside them.
// Errors     Error{invalid_argument} with the byte for a file that is no such trace; Error{io}.
// Source     the trace files themselves; the names of the fields are Kineto's.
Trace read_kineto(Input& input);

}  // namespace saturate::observe
