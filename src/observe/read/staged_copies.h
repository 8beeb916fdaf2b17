// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "observe/trace/trace.h"

namespace saturate::observe {

// Adds what a library does before it copies an array of the host to the device by threads of its
// own (JAX, with an array of NumPy as an argument): they copy it into pinned memory, while the
// thread of the program sleeps in its call. They are known by this: threads that issue copies to
// the device of a MiB and more, eight or more of them, and no kernel, in a process whose first
// thread sleeps meanwhile at a futex, in no function of Python's own library such as a queue, in
// four fifths of its samples. Each such stretch of a millisecond and more becomes a call of the
// thread that issues the copy, named kStagedCopy. Without samples nothing is added. `trace` is
// sorted, and is afterwards. Cost: O(n log n).
void add_staged_copies(Trace& trace);

}  // namespace saturate::observe
