// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstddef>

#include "observe/read/input.h"
#include "observe/trace/trace.h"

namespace saturate::observe {

struct KinetoOptions {
  int threads = 0;                       // 0: up to 4, as many as the machine has cores
  size_t chunk_bytes = size_t{1} << 20;  // that a thread takes at a time
  bool careful = false;                  // all events by the careful reader: for tests
};

// Reads what torch.profiler exports (Chrome trace JSON of Kineto): kernels, copies, fills, CUDA
// calls, the profiler's step marks, user annotations and the waits of the data loader. Other events
// are passed over. Memory     what the returned records need, a third more while parts are joined,
// and a few MiB a thread. The result does not depend on the options.
// Errors     Error{invalid_argument} with the byte for a file that is no such trace; Error{io}.
// Source     the trace files themselves; the names of the fields are Kineto's.
Trace read_kineto(Input& input, KinetoOptions options = {});

}  // namespace saturate::observe
