// SPDX-License-Identifier: Apache-2.0
// Sentences come, change places and go between two steps of beam search.
#pragma once
#include <cstdint>

#include "kernels/decode/beam_step.h"

namespace saturate::kernels {

// What happens to place `to` of a batch, the rows [to * beam, (to + 1) * beam).
struct BeamPlacement {
  enum class What : int32_t {
    start,  // a new sentence begins
    move,   // the sentence of place `from` goes on here; nothing is there afterwards
    clear   // nothing is here: its rows count as finished
  };
  What what = What::clear;
  int32_t to = 0;
  int32_t from = 0;  // move: another place, which no placement of the call writes
  // start: the first of beam * sentence.limit slots; where the keys and values of the source lie, in
  // rows of its memory, and how many; its prefix in `prefixes`.
  int32_t first_slot = 0, memory_start = 0, memory_length = 0, prefix_at = 0;
  BeamSentence sentence = {};
};

// The arrays of BeamState as beam_step() takes them, and of each row where the memory of its source
// lies (cached_attention.h).
//
// Shapes    placements[0 .. *count) are carried out, `most` at most; memory_starts and
//           memory_lengths (rows).
// Types     scores in wide_of(dtype), the rest i32.
// Aliasing  no two placements name one place as `to`, none names another's `to` as `from`.
// Stream    enqueued on ctx.stream; the grid depends on `most` alone (graph-capturable).
// Order     placements do not touch each other, so any.
// Errors    invalid_argument for sizes and pointers, placements that are not aligned among them; unsupported when no implementation fits; device.
// Cost      a few numbers for each row that changes.
// Source    none: copies.
struct BeamPlaceArgs {
  const BeamPlacement* placements = nullptr;  // device memory, as all below
  const int32_t* count = nullptr;
  const int32_t* prefixes = nullptr;  // token ids; read where a sentence has a prefix
  int64_t most = 0;
  BeamState state;
  int32_t* memory_starts = nullptr;
  int32_t* memory_lengths = nullptr;
  int64_t beam = 1;
  DType dtype = DType::f32;
  int32_t start = 0;  // the id that begins every translation
};

void beam_place(const Context& ctx, const BeamPlaceArgs& args);

}  // namespace saturate::kernels
