// SPDX-License-Identifier: Apache-2.0
// The logits of a row of beam search, and what it has said. Include from *_cpu.cpp.
#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>

#include "kernels/decode/beam_step.h"
#include "kernels/decode/token_rules_cpu.h"

namespace saturate::kernels {

// Columns count, not ids, until a token is chosen: their order is the same.
template <class T>
struct LogitsRow {
  T* z = nullptr;
  int64_t count = 0;
  const int32_t* ids = nullptr;  // null: column c is token c
  bool wide = false;             // vectors of sixteen floats may run; the bits are the same
  int32_t id(int64_t column) const {
    return ids == nullptr ? static_cast<int32_t>(column) : ids[column];
  }
  // Null where the token has no column.
  T* logit(int32_t token) const {
    if (ids == nullptr) return z + token;
    const int32_t* const found = std::lower_bound(ids, ids + count, token);
    return found != ids + count && *found == token ? z + (found - ids) : nullptr;
  }
};

// Row `row` of logits that lie as `a`, of a step of the search, says.
template <class T, class Args>
LogitsRow<T> logits_row(const Args& a, void* logits, int64_t row) {
  T* const z = static_cast<T*>(logits);
  const bool wide = a.level >= CpuLevel::avx512;
  if (a.columns == nullptr) return {z + row * a.ld, a.vocab, nullptr, wide};
  const int64_t s = row / a.beam;
  const TokenColumns& c = a.columns[s];
  return {z + s * a.beam * a.ld + row % a.beam * c.ld, c.count, c.ids, wide};
}

// Token j of a row's translation, j < positions[row].
inline int32_t said_token(const BeamState& b, int64_t row, int64_t j) {
  return j + 1 == b.positions[row] ? b.ids[row] : b.tokens[b.slots[b.starts[row] + j + 1]];
}

// The rules of the row's sentence on its logits.
template <class T, class Args>
void apply_sentence_rules(const Args& a, int64_t row, const LogitsRow<T>& logits) {
  apply_rules<T>(
      a.state.sentences[row / a.beam].rules, a.suppressed, {&a.eos, 1}, 0, a.state.positions[row],
      [&](int64_t j) { return said_token(a.state, row, j); },
      [&](int32_t id) { return logits.logit(id); });
}

constexpr int64_t kStretch = 128;
// The largest of each kStretch columns, of those that are numbers.
template <class T>
std::vector<T> largest_of_stretches(const LogitsRow<T>& logits);

// log sum_c e^z[c], given its largest_of_stretches(). Compiled once, for all who must have the same bits:
// where a compiler joins products and sums is a matter of what stands around them.
template <class T>
T log_sum(const LogitsRow<T>& logits, const std::vector<T>& tops);

}  // namespace saturate::kernels
