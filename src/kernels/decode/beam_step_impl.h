// SPDX-License-Identifier: Apache-2.0
// What beam_step.cpp shares with the implementations.
#pragma once
#include <limits>

#include "base/philox.h"
#include "kernels/decode/beam_place.h"
#include "kernels/decode/beam_step.h"

namespace saturate::kernels {

void beam_step_cpu(const Context& ctx, const BeamStepArgs& args);
void beam_step_cuda(const Context& ctx, const BeamStepArgs& args);
void beam_place_cpu(const Context& ctx, const BeamPlaceArgs& args);
void beam_place_cuda(const Context& ctx, const BeamPlaceArgs& args);

// Rows of each group of a sentence.
SAT_HD int64_t width_of(const BeamSentence& s, int64_t beam) { return beam / s.groups; }

// Whether at position t the first row's best tokens are given to the groups, one each.
SAT_HD bool goes_apart(const BeamSentence& s, int64_t t) { return s.apart != 0 && t == s.prefix; }

// Tokens that row k of a sentence may have to offer at position t. With diversity all: the groups
// before can have chosen at most `beam - width` of them, so the best of what is left are among these.
SAT_HD int64_t candidates_of(const BeamSentence& s, int64_t beam, int64_t t) {
  if (s.drawn != 0) return 1;
  if (goes_apart(s, t)) return s.groups;
  return s.diversity > 0.0f ? beam : width_of(s, beam);
}

// What draws the tokens of row k.
SAT_HD TokenDraw draw_of(const BeamSentence& s, int64_t beam, int64_t k) {
  TokenDraw d = s.draw;
  d.sample = static_cast<int32_t>(k / width_of(s, beam));
  return d;
}

// What placement p of the call does to its row k; scores are of type T. For CPU and GPU: rows and
// placements do not touch each other.
template <class T>
SAT_HD void place_row(const BeamPlaceArgs& a, const BeamPlacement& p, int64_t k) {
  constexpr T kNever = -std::numeric_limits<T>::infinity();
  const BeamState& s = a.state;
  const int64_t row = p.to * a.beam + k;
  T* const scores = static_cast<T*>(s.scores);
  T* const penalties = static_cast<T*>(s.penalties);
  if (p.what == BeamPlacement::What::clear) {
    s.finished[row] = 1;
    return;
  }
  if (p.what == BeamPlacement::What::move) {
    const int64_t from = p.from * a.beam + k;
    s.ids[row] = s.ids[from];
    s.positions[row] = s.positions[from];
    s.finished[row] = s.finished[from];
    s.lengths[row] = s.lengths[from];
    s.starts[row] = s.starts[from];
    scores[row] = scores[from];
    penalties[row] = penalties[from];
    a.memory_starts[row] = a.memory_starts[from];
    a.memory_lengths[row] = a.memory_lengths[from];
    s.finished[from] = 1;
    if (k == 0) s.sentences[p.to] = s.sentences[p.from];
    return;
  }
  s.ids[row] = a.start;
  s.positions[row] = 0;
  const int64_t width = width_of(p.sentence, a.beam);
  // Of rows that are open without a score the first merge of their group makes use.
  s.finished[row] = k < width * p.sentence.groups ? 0 : 1;
  s.lengths[row] = 0;
  penalties[row] = T(0);
  s.starts[row] = p.first_slot + static_cast<int32_t>(k) * p.sentence.limit;
  const bool begins = p.sentence.apart != 0 ? k == 0 : k % width == 0;
  scores[row] = begins && s.finished[row] == 0 ? T(0) : kNever;
  a.memory_starts[row] = p.memory_start;
  a.memory_lengths[row] = p.memory_length;
  if (k > 0) return;
  s.sentences[p.to] = p.sentence;
  for (int32_t j = 0; j < p.sentence.prefix; ++j) {
    s.tokens[p.first_slot + 1 + j] = a.prefixes[p.prefix_at + j];
    static_cast<T*>(s.sums)[p.first_slot + 1 + j] = T(0);
  }
}

}  // namespace saturate::kernels
