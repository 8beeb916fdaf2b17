// SPDX-License-Identifier: Apache-2.0
// Ranks in one process: the transport that layouts are proved with.
#pragma once
#include <functional>

#include "parallel/communicator.h"

namespace saturate::parallel {

// Calls body(communicator of rank r) for r = 0 ... ranks - 1, on CPU memory. Each has a thread, but
// one runs at a time: a rank until it waits for a collective that not all its ranks have started,
// then the next rank that can go on. The last rank to start a collective performs it, as copies and
// sums in the order of ranks, so results are a function of the bodies alone. Any code that takes a
// Communicator runs in it as it is.
//
// Errors  what the first failing body threw, after all have ended (the others see `collective` when
//         they wait); collective when ranks that meet in a group have started different things (both
//         are named), when no rank can go on (names what each waits for), or when a rank ends while
//         something it started lacks the others.
void run_lockstep(int ranks, const std::function<void(Communicator&)>& body);

}  // namespace saturate::parallel
