// SPDX-License-Identifier: Apache-2.0
// How a capture's own samples of threads, a hundred a second, are fitted to its calls, which are
// known to the nanosecond.
#pragma once
#include "observe/trace/trace.h"

namespace saturate::observe {

// A sample shows how long a thread slept since the one before, and hardly where. A thread that
// makes calls sleeps between two of them: each wait of such a thread (is_host_wait) moves to the
// pauses between calls that it overlaps most, then to the nearest, as long as they have room; what
// finds none within three samples is dropped. Pauses below 0.2 ms hold no sleep. Where stacks of
// the thread were sampled, pauses between two calls of the same names hold as large a part of sleep
// as samples in them found it asleep, so a stretch that always runs holds none. `trace` is sorted,
// and is afterwards.
void place_waits(Trace& trace);

// Some programs issue work on a thread that only takes orders (JAX's dispatch, autograd's backward
// pass): while it sleeps, the process's first thread decides. So what a thread that issues sleeps
// is given to what the first one does meanwhile: its own code, which leaves no span; its wait, by
// that wait's kind and name; within its calls to CUDA nothing changes. A first thread that `trace`
// does not know leaves all as it is. `trace` is sorted, and is afterwards. Cost: O(n log n).
void follow_deciders(Trace& trace);

// Calls a wait a loader's (blocked, for a file or the network) when stacks show its thread in the wait
// of PyTorch's loader for its workers, or when the first thing that its thread
// issues afterwards is a copy to the device, and, where it is not known what for, waits are at
// least a third of the pause between two calls: without marks in the program that is what separates it from other waits. Where the wait is
// most of a pause between two calls, the code around it is the loader's too, and the whole pause
// counts. `trace` is sorted.
void mark_loader_waits(Trace& trace);

}  // namespace saturate::observe
