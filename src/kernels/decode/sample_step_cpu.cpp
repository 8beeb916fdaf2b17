// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include "kernels/decode/sample_step_impl.h"
#include "kernels/decode/token_draw_cpu.h"
#include "kernels/decode/token_rules_cpu.h"
#include "kernels/host/vector_math.h"
#include "runtime/parallel_for.h"

namespace saturate::kernels {
namespace {

struct Drawn {
  int32_t id = -1;
  float log_probability = 0;
};

// The logarithm of the token's share of softmax(z).
template <class T>
float log_share(const T* z, int64_t vocab, T top, int32_t id) {
  T sum = 0;
  for (int64_t c = 0; c < vocab; ++c) sum += std::isnan(z[c]) ? T(0) : vector_exp(z[c] - top);
  return static_cast<float>(z[id] - top - std::log(sum));
}

template <class T>
Drawn draw(const SampleStepArgs& a, int64_t row) {
  const SampleSequence& c = a.state.sequences[row];
  T* z = static_cast<T*>(a.logits) + row * a.ld;
  const int32_t* said = a.state.tokens + a.state.starts[row];
  const TokenChoice choice = choice_of(a.choices, c);
  apply_biases(choice, a.vocab, z);
  TokenRules rules = c.rules;
  rules.least += c.prompt;
  apply_rules<T>(
      rules, a.suppressed, {c.ends, static_cast<size_t>(c.end_count)}, c.prompt,
      a.state.positions[row] + 1, [said](int64_t j) { return said[j]; },
      [z](int32_t id) { return z + id; });
  apply_allowed(choice, a.vocab, z);
  const int32_t likeliest = likeliest_token(z, a.vocab);
  if (likeliest < 0 || !std::isfinite(z[likeliest])) return {};
  const T top = z[likeliest];
  const int32_t id = c.temperature > 0.0f
                         ? draw_token(z, a.vocab, top, draw_of(c), a.state.positions[row])
                         : likeliest;
  return {id, c.wants_scores != 0 ? log_share(z, a.vocab, top, id) : 0.0f};
}

}  // namespace

void sample_step_cpu(const Context&, const SampleStepArgs& a) {
  parallel_for(a.rows, 1, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      if (a.state.finished[row] != 0) continue;
      Drawn drawn;
      if (a.state.positions[row] + 1 >= a.state.sequences[row].prompt)
        drawn = a.dtype == DType::f64 ? draw<double>(a, row) : draw<float>(a, row);
      advance(a, row, drawn.id, drawn.log_probability);
    }
  });
}

void sample_place_cpu(const Context&, const SamplePlaceArgs& a) {
  const int64_t count = std::min<int64_t>(*a.count, a.most);
  for (int64_t i = 0; i < count; ++i) place_sequence(a, a.placements[i], 0, 1);
}

}  // namespace saturate::kernels
