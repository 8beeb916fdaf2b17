// SPDX-License-Identifier: Apache-2.0
// Which elements of whole parameters a rank holds, and where: by parts of cut parameters and by
// owned ranges. What checkpoints and model folders are written from and read into.
#pragma once
#include <cstdint>
#include <functional>
#include <span>

#include "ops/parameters.h"

namespace saturate {

// `length` elements of the whole parameter from `whole` on, which lie at `at` of a chunk of memory.
struct HeldRun {
  int64_t at = 0, whole = 0, length = 0;
};

// One of several that do the same: it takes every part `rank` of `ranks` equal ones.
struct Share {
  int rank = 0, ranks = 1;
};

// What of an array: the ranges that this rank owns, or all that it has in memory. These differ where
// ranks own parts of masters that each of them reads as a whole.
enum class Held : uint8_t { owned, in_memory };

// Calls f(memory of consecutive elements of array `a`, their number, the runs of the whole parameter
// in them) for all that this rank holds, or a share, in their order; at most `most` elements at once.
// Rows that pad a vocabulary are in no run; what is in none of a chunk's runs is of them. Without
// allocated memory `memory` is null.
// Order   the same for one store every time; over the ranks that hold a parameter together the owned
//         runs are each of its elements once, or more often where ranks hold copies.
using TakeHeld = std::function<void(char* memory, int64_t elements, std::span<const HeldRun> runs)>;
void for_held(const ParameterStore& store, const ParameterSpec& p, StateArray a, Held what,
              Share share, int64_t most, const TakeHeld& f);

// The whole parameter as files hold it: without rows that pad a vocabulary.
struct SavedShape {
  int64_t rows = 0, cols = 0;
};
SavedShape saved_shape(const ParameterSpec& p) noexcept;

}  // namespace saturate
