// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>

#include "base/dtype.h"
#include "base/philox.h"
#include "kernels/decode/token_rules.h"
#include "runtime/context.h"

namespace saturate::kernels {

constexpr int32_t kMostEnds = 8;

// What one sequence wants: how its tokens are drawn and when it ends; in device memory, so that one
// captured step serves sequences of different wishes.
struct SampleSequence {
  uint64_t seed = 0;
  int32_t stream = 0;            // which of the seed's random numbers it uses
  float temperature = 1.0f;      // 0: the likeliest token
  float top_p = 1.0f;            // in (0, 1]; 1: all
  int32_t top_k = 0;             // 0: all
  float min_p = 0.0f;            // in [0, 1]; 0: all
  int32_t ends[kMostEnds] = {};  // ids that end it
  int32_t end_count = 0;
  int32_t prompt = 1;        // tokens of its prompt, at least 1
  int32_t limit = 1;         // prompt and continuation together are no longer
  int32_t result = 0;        // number of its part of SampleResult
  int32_t wants_scores = 0;  // 1: log-probabilities are written
  int32_t adapter = -1;      // of several side by side (adapters/keep_columns.h); -1: none
  TokenRules rules = {};     // of the prompt with its continuation
  int32_t biases = 0;        // so many of its part of SampleChoices count
  int32_t chooses = 0;       // 1: only the tokens allowed there may come
};

// Sequences by row, in device memory. Position j of a row's tokens lies in tokens[starts[row] + j]:
// the prompt from the beginning, what is drawn when it has been. sample_place() makes what a sequence
// starts with.
struct SampleState {
  int32_t* ids = nullptr;               // (rows) input of the next step
  int32_t* positions = nullptr;         // (rows) its position
  int32_t* finished = nullptr;          // (rows) 1: ended, or unused
  int32_t* starts = nullptr;            // (rows) first slot, see cached_attention.h
  SampleSequence* sequences = nullptr;  // (rows)
  int32_t* tokens = nullptr;            // by slot
};

// What the host may watch, if it sees this memory; part r of it belongs to one sequence:
//
//   tokens[r * stride]             how many have been drawn, an end not counted
//   tokens[r * stride + 1]         1 when the sequence has ended, 2 when it ended because its largest
//                                  logit is not finite
//   tokens[r * stride + 2 + i]     those drawn
//   log_probabilities[r * stride + 2 + i]  of each
struct SampleResult {
  int32_t* tokens = nullptr;
  float* log_probabilities = nullptr;
  int64_t stride = 0;  // at least 2 more than any continuation is long
};

// What sequences ask by id, in memory that the device reads when the step runs, of the host or its own; by
// number of the result. Part r begins at r times the stride.
struct SampleChoices {
  const TokenBias* biases = nullptr;  // null: no sequence has any
  int64_t bias_stride = 0;
  const uint32_t* allowed = nullptr;  // null: no sequence chooses
  int64_t word_stride = 0;            // at least vocab / 32
};

// Chooses the token after each unfinished row's position: the prompt's while there is one,
// otherwise drawn from softmax(logits / temperature) cut to the top_k likeliest tokens, of these to
// the smallest set of the likeliest with a share of at least top_p, of these to those at least min_p
// times as likely as the likeliest.
//
// Draw      as token_draw.h says, sample 0 of the stream.
// Result    a log-probability is that of softmax(logits), as the rules leave them, without
//           temperature and cuts.
// Shapes    logits (rows, ld), the first `vocab` columns count, changed where rules say so. Logits
//           that are not numbers are never drawn; a row whose largest logit is not finite, or without
//           any number, ends.
// Types     logits in dtype; ids, lengths and results i32; weights as above, in integers;
//           log-probabilities in f32.
// Stream    enqueued on ctx.stream; graph-capturable; never synchronises.
// Order     bitwise equal run to run; a row's token depends on its own row only.
// Errors    invalid_argument for sizes, pointers and vocab; unsupported when no implementation
//           fits; device.
// Cost      a few reads of the logits of unfinished rows: one for the largest, others for the cut
//           and for a log-probability; where a penalty counts, also the sequence's tokens, once for
//           each 6,144 ids (GPU). A sequence that chooses reads its bits, vocab / 8 bytes.
// Source    token_draw.h.
struct SampleStepArgs {
  void* logits = nullptr;
  SampleState state;
  SuppressedTokens suppressed = {};
  SampleResult result;
  SampleChoices choices = {};
  int64_t rows = 0, vocab = 0, ld = 0;
  DType dtype = DType::f32;
};

void sample_step(const Context& ctx, const SampleStepArgs& args);

// What happens to row `to` between two steps.
struct SamplePlacement {
  enum class What : int32_t {
    start,  // a new sequence begins
    move,   // the sequence of row `from` goes on here; nothing is there afterwards
    clear   // nothing is here: the row counts as finished
  };
  What what = What::clear;
  int32_t to = 0;
  int32_t from = 0;        // move: another row, which no placement of the call writes
  int32_t first_slot = 0;  // start: of sequence.limit slots,
  int32_t prompt_at = 0;   // where its prompt lies in `prompts`,
  int32_t first = 0;       // and the first position that a step computes: below prompt
  SampleSequence sequence = {};
};

// The arrays of SampleState as sample_step() takes them.
//
// Shapes    placements[0 .. *count) are carried out, `most` at most; prompts: ids.
// Types     all i32 but what SampleSequence says.
// Aliasing  no two placements name one row as `to`, none names another's `to` as `from`.
// Stream    enqueued on ctx.stream; the grid depends on `most` alone (graph-capturable).
// Order     placements do not touch each other, so any.
// Errors    invalid_argument for sizes and pointers; unsupported when no implementation fits; device.
// Cost      a few numbers for each row that changes, and its prompt.
// Source    none: copies.
struct SamplePlaceArgs {
  const SamplePlacement* placements = nullptr;  // device memory, as all below
  const int32_t* count = nullptr;
  const int32_t* prompts = nullptr;
  int64_t most = 0;
  SampleState state;
};

void sample_place(const Context& ctx, const SamplePlaceArgs& args);

}  // namespace saturate::kernels
