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

// What placement p of the call does to its row k; scores are of type T. For CPU and GPU: rows and
// placements do not touch each other.
template <class T>
SAT_HD void place_row(const BeamPlaceArgs& a, const BeamPlacement& p, int64_t k) {
  constexpr T kNever = -std::numeric_limits<T>::infinity();
  const BeamState& s = a.state;
  const int64_t row = p.to * a.beam + k;
  T* const scores = static_cast<T*>(s.scores);
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
    a.memory_starts[row] = a.memory_starts[from];
    a.memory_lengths[row] = a.memory_lengths[from];
    s.finished[from] = 1;
    if (k == 0) s.sentences[p.to] = s.sentences[p.from];
    return;
  }
  s.ids[row] = a.start;
  s.positions[row] = 0;
  s.finished[row] = 0;
  s.lengths[row] = 0;
  s.starts[row] = p.first_slot + static_cast<int32_t>(k) * p.sentence.limit;
  scores[row] = k == 0 ? T(0) : kNever;
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
