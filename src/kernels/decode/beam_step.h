// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>

#include "base/dtype.h"
#include "kernels/decode/token_draw.h"
#include "kernels/decode/token_rules.h"
#include "kernels/options.h"
#include "runtime/context.h"

namespace saturate::kernels {

constexpr int64_t kMaxBeam = 64;  // also the end of the range of the keys and flags of beams

// What one sentence wants of its search; in device memory, so that one recorded step serves
// sentences of different wishes. Lengths in tokens; those of a translation count its prefix and
// end-of-sentence.
struct BeamSentence {
  int32_t limit = 0;   // longest translation; each of the sentence's rows owns so many slots
  int32_t prefix = 0;  // tokens that it must begin with, fewer than limit; see BeamState::tokens
  int32_t wanted = 1;  // so many of the best hypotheses must be known, at most the beam
  int32_t result = 0;  // number of its part of BeamResult
  float length_penalty = 1.0f;  // not negative
  TokenRules rules = {};        // of the translation with its prefix; least is below limit
  // The rows are searched in `groups` of beam / groups each, 1 to beam; rows beyond stay unused. Only
  // hypotheses of one group take places from each other.
  int32_t groups = 1;
  // What a token loses in a group for each time that an earlier group has chosen it at this position
  // for a hypothesis that goes on; not negative. Candidates are ranked by what is left, results are not.
  float diversity = 0.0f;
  // 1: at the first position behind the prefix the likeliest tokens of all are given to the groups,
  // one each.
  int32_t apart = 0;
  // 1: each group has one hypothesis, whose tokens are drawn; `draw.sample` counts the groups.
  int32_t drawn = 0;
  TokenDraw draw = {};
};

// The hypotheses of a batch, in device memory; rows [s * beam, (s + 1) * beam) belong to sentence
// s. A row's token at position j lies in tokens[slots[starts[row] + j]]: histories are shared and
// never moved. beam_place() makes the state that a sentence starts with.
struct BeamState {
  int32_t* ids = nullptr;             // (rows) input of the next step
  int32_t* positions = nullptr;       // (rows) its position
  int32_t* finished = nullptr;        // (rows) 1: ended
  int32_t* lengths = nullptr;         // (rows) tokens of an ended hypothesis
  int32_t* starts = nullptr;          // (rows) the row's first slot
  void* scores = nullptr;             // (rows) sum of log-probabilities, in wide_of(dtype)
  void* penalties = nullptr;          // (rows) what diversity took away, in wide_of(dtype)
  BeamSentence* sentences = nullptr;  // (sentences)
  int32_t* slots = nullptr;           // by slot, see cached_attention.h
  // By slot. Token j of a sentence's prefix lies in the slot starts + 1 + j of its first row.
  int32_t* tokens = nullptr;
  void* sums = nullptr;  // by slot: log-probabilities up to and with this token, in wide_of(dtype)
};

// Which tokens the columns of a sentence's logits are for: column c is token ids[c]; ascending, each
// once, end-of-sentence among them. In the CPU's memory.
struct TokenColumns {
  const int32_t* ids = nullptr;
  int64_t count = 0;
  int64_t ld = 0;  // from row to row, at least count
};

// Phrases that every translation of a sentence must hold: their tokens, one phrase after the other, and
// how many each has; none is empty, of end-of-sentence or forbidden. In the CPU's memory. The sentence has
// one group, which draws nothing, and a limit of at least the prefix, all these tokens and one more.
struct TokenPhrases {
  const int32_t* tokens = nullptr;
  const int32_t* lengths = nullptr;
  int64_t count = 0;
};

// What became of a sentence, in memory that the host may watch. `done` is 0 until its search has
// ended, then how many hypotheses had ended, or -1: none has a score that is a number. Of hypothesis
// k of part r, in the order of the rows:
//
//   tokens[(r * beam + k) * stride]   its length, then its tokens without end-of-sentence
//   sums[(r * beam + k) * stride]     its log-probability, then that up to and with each of those tokens
//   slots[(r * beam + k) * stride + j] the slot of the position that chose its token j, or its end
struct BeamResult {
  int32_t* done = nullptr;
  int32_t* tokens = nullptr;
  void* sums = nullptr;      // in wide_of(dtype)
  int64_t stride = 0;        // at least every limit
  int32_t* slots = nullptr;  // null: nobody wants them
};

// One step of beam search (beam 1: greedy). Every open hypothesis is extended by every token, an
// ended one by nothing; of all these the `beam` with the largest score stay, or in each group as many
// as it has rows. Ties go to the earlier row, then the smaller id. The token that reaches the
// sentence's limit can only be end-of-sentence. While the prefix lasts its next token is the only one,
// and adds nothing to the score. A group that draws is extended by the one token that is drawn.
//
// A hypothesis is worth score / n^length_penalty, n its tokens behind the prefix. A group is done
// when all its hypotheses have ended, or when its part of the `wanted`, rounded up, have ended and are
// worth at least what any open one could still be; a sentence, when all its groups are. Its result is
// written then.
//
// Where translations must hold phrases, each row also offers what carries on a phrase that its hypothesis
// does not hold, end-of-sentence only when it holds all, and nothing after which the others would not fit
// under the limit. Hypotheses compete with those alone that owe as many tokens; from the least to the most
// of these the best take places in turn. Ended ones keep at most half of the places, the worthiest, and so
// many of `wanted` count. Open ones count for what they are worth at their own length, and only if they owe
// nothing.
//
// Shapes    logits (rows, ld), the first `vocab` columns count, changed where rules say so;
//           candidate_scores (wide_of(dtype)) and candidate_ids (i32) are scratch of rows * beam
//           elements.
//           With `columns` the rows of sentence s begin at element s * beam * ld and lie
//           columns[s].ld <= ld apart; the tokens that have no column share no probability.
//           With `log_sums` (rows) log-probabilities are logits less these, and rules are in the logits
//           already: what mean_logits() makes of several models.
// Types     logits in dtype; log-softmax in wide_of(dtype). Logits that are not numbers or minus
//           infinity are never chosen; a hypothesis that nothing extends ends.
// Aliasing  none.
// Stream    enqueued on ctx.stream; grid independent of the state (graph-capturable).
// Order     bitwise equal run to run, and a sentence's result depends on its own rows only.
// Errors    invalid_argument for sizes, pointers, beam and eos; unsupported when no
//           implementation fits; device.
// Cost      one read of the logits of open rows.
// Source    Sutskever et al., arXiv:1409.3215 (the search); length_penalty as fairseq's and
//           CTranslate2's, whose prefixes do not count either; groups: Vijayakumar et al.,
//           arXiv:1610.02424 (Hamming diversity); apart: CTranslate2's return_alternatives; phrases:
//           Post and Vilar, NAACL 2018, with places shared in turn as Hu et al., NAACL 2019, do.
struct BeamStepArgs {
  void* logits = nullptr;
  BeamState state;
  const TokenColumns* columns = nullptr;  // (sentences); null: column c is token c. CPU alone
  const TokenPhrases* phrases = nullptr;  // (sentences); null: none has any. CPU alone
  const void* log_sums = nullptr;         // (rows), in wide_of(dtype); null: of the logits
  SuppressedTokens suppressed = {};
  void* candidate_scores = nullptr;
  int32_t* candidate_ids = nullptr;
  BeamResult result;
  int64_t sentences = 0, beam = 1;  // at most kMaxBeam
  int64_t vocab = 0, ld = 0;
  DType dtype = DType::f32;
  int32_t eos = 0;
  int32_t banned = -1;  // never chosen (padding), though it keeps its probability; -1: none
  bool draws = false;   // whether a sentence may have `drawn`
  CpuLevel level = CpuLevel::plain;  // the newest that may run on a CPU: cpu_level() or older
};

void beam_step(const Context& ctx, const BeamStepArgs& args);

}  // namespace saturate::kernels
