// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "observe/trace/trace.h"

namespace saturate::observe {

// Adds the waits for a device that are no call of CUDA: a thread that sleeps until a function that
// is queued behind the work wakes it (JAX), or that looks again and again. They are known by what
// follows: the program calls nothing while the device works, its first thread sleeps, and it goes
// on within 1 ms of the end of all work, in half of such cases or more; within 0.3 ms where no
// stacks were sampled. A value that is copied to the host then is part of the wait. Each such wait
// becomes a call, named kDeviceWait, of each thread of its process that makes calls and of its
// first one. `trace` is sorted, and is afterwards. Cost: O(n log n).
void add_device_waits(Trace& trace);

}  // namespace saturate::observe
