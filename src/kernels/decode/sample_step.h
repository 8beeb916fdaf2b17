// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>

#include "base/dtype.h"
#include "base/philox.h"
#include "runtime/context.h"

namespace saturate::kernels {

// How tokens are drawn; in device memory, so that one captured step serves every call.
struct SampleControls {
  uint64_t seed = 0;
  float temperature = 1.0f;  // 0: the likeliest token
  float top_p = 1.0f;        // in (0, 1]; 1: all
  int32_t top_k = 0;         // 0: all
  int32_t eos = -1;          // ends a sequence; -1: nothing does
};

// Arrays of a batch of sequences, in device memory, (rows) unless said otherwise. Before the first
// step: ids the first token of each prompt, positions 0, finished 0 (1 for unused rows).
struct SampleState {
  int32_t* ids = nullptr;        // input of the next step
  int32_t* positions = nullptr;  // its position
  int32_t* finished = nullptr;
  const int32_t* prompts = nullptr;         // (rows, prompt_stride)
  const int32_t* prompt_lengths = nullptr;  // at least 1
  const int32_t* limits = nullptr;   // prompt and continuation together are this long at most
  const int32_t* streams = nullptr;  // which random numbers a row uses
};

// Chooses the token after each unfinished row's position: the prompt's while there is one,
// otherwise drawn from softmax(logits / temperature) cut to the top_k likeliest tokens, of these to
// the smallest set of the likeliest with a share of at least top_p.
//
// Draw      tokens in order of falling logit, smaller id first; weight floor(2^32 e^((z - top) /
//           T)). Sums of weights are integers, so the order of summing does not matter. The token
//           is the first whose running sum exceeds W x / 2^32, W the sum of those kept and x the
//           first number of random_block(seed, streams[row], kSampleOp, position).
// Result    result[row * result_stride]: [0] tokens drawn so far, [1] 1 when the row has ended
//           and 2 when it ended because its largest logit is not finite, [2 ...] the tokens without
//           eos. The host may watch it, if both see that memory.
// Shapes    logits (rows, ld), the first `vocab` columns count. Logits that are not numbers are
//           never drawn; a row whose largest logit is not finite, or without any number, ends.
// Types     logits in dtype; ids, lengths and results i32; weights as above, in integers.
// Stream    enqueued on ctx.stream; graph-capturable; never synchronises.
// Order     bitwise equal run to run; a row's token depends on its own row only.
// Errors    invalid_argument for sizes, pointers and vocab; unsupported when no implementation
//           fits; device.
// Cost      a few reads of the logits of unfinished rows: one for the largest, others for the cut.
// Source    Fan et al., arXiv:1805.04833 (top_k); Holtzman et al., arXiv:1904.09751 (top_p).
struct SampleStepArgs {
  const void* logits = nullptr;
  SampleState state;
  const SampleControls* controls = nullptr;
  int32_t* result = nullptr;
  int64_t rows = 0, vocab = 0, ld = 0, prompt_stride = 0, result_stride = 0;
  DType dtype = DType::f32;
};

constexpr uint32_t kSampleOp = 0x53414D;  // apart from the operations of a training step

void sample_step(const Context& ctx, const SampleStepArgs& args);

}  // namespace saturate::kernels
