// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>

#include "base/dtype.h"
#include "runtime/context.h"

namespace saturate::kernels {

constexpr int64_t kMaxBeam = 64;  // also the end of the range of the keys and flags of beams

// The hypotheses of a batch, in device memory; rows [s * beam, (s + 1) * beam) belong to sentence
// s. A row's token at position j lies in tokens[slots[starts[row] + j]]: histories are shared and
// never moved. Before the first step: ids the start token, positions 0, finished 0 (1 for every row
// of an unused sentence), scores 0 for the first row of a sentence and -infinity for its others.
struct BeamState {
  int32_t* ids = nullptr;           // (rows) input of the next step
  int32_t* positions = nullptr;     // (rows) its position
  int32_t* finished = nullptr;      // (rows) 1: ended
  int32_t* lengths = nullptr;       // (rows) tokens of an ended hypothesis, end-of-sentence counted
  void* scores = nullptr;           // (rows) sum of log-probabilities, in wide_of(dtype)
  int32_t* slots = nullptr;         // by slot, see cached_attention.h
  int32_t* tokens = nullptr;        // by slot
  const int32_t* starts = nullptr;  // (rows) the row's first slot; it owns limits[sentence] slots
  const int32_t* limits = nullptr;  // (sentences) longest translation, end-of-sentence counted
};

// One step of beam search (beam 1: greedy). Every open hypothesis is extended by every token, an
// ended one by nothing; of all these the `beam` with the largest score stay. Ties go to the earlier
// row, then the smaller id. The token that reaches the sentence's limit can only be
// end-of-sentence.
//
// A sentence is done when all its hypotheses have ended, or when the best ended one has a larger
// score / length^length_penalty than any open one could still reach. Then the best is written to
// result[s * result_stride + j], j = 1 .. length - 1 (end-of-sentence left out), followed by its
// length in element 0, which is 0 until then: the host may watch it, if `result` is memory that
// both see.
//
// Shapes    logits (rows, ld), the first `vocab` columns count; candidate_scores (wide_of(dtype))
//           and candidate_ids (i32) are scratch of rows * beam elements.
// Types     logits in dtype; log-softmax in wide_of(dtype). Logits that are not numbers are never
//           chosen; a hypothesis that nothing extends ends.
// Aliasing  none.
// Stream    enqueued on ctx.stream; grid independent of the state (graph-capturable).
// Order     bitwise equal run to run, and a sentence's result depends on its own rows only.
// Errors    invalid_argument for sizes, pointers, beam, eos and length_penalty; unsupported when no
//           implementation fits; device.
// Cost      one read of the logits of open rows.
// Source    Sutskever et al., arXiv:1409.3215 (the search); length_penalty as fairseq's and
//           CTranslate2's.
struct BeamStepArgs {
  const void* logits = nullptr;
  BeamState state;
  void* candidate_scores = nullptr;
  int32_t* candidate_ids = nullptr;
  int32_t* result = nullptr;
  int64_t sentences = 0, beam = 1;  // at most kMaxBeam
  int64_t vocab = 0, ld = 0, result_stride = 0;
  DType dtype = DType::f32;
  int32_t eos = 0;
  int32_t banned = -1;          // never chosen (padding); -1: none
  float length_penalty = 1.0f;  // not negative
};

void beam_step(const Context& ctx, const BeamStepArgs& args);

}  // namespace saturate::kernels
