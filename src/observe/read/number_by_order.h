// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "observe/trace/trace.h"

namespace saturate::observe {

// Gives launches and kernels that have no correlation a common one where their order shows which
// belongs to which: between the ends of two synchronising calls of a process, when all kernels ran
// on one stream, as many as were launched, and none before its launch. Others stay without.
// `trace` is sorted. Cost       O(n log n).
void number_by_order(Trace& trace);

}  // namespace saturate::observe
