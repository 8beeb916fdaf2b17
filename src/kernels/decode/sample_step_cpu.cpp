// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/decode/sample_step_impl.h"
#include "runtime/parallel_for.h"

namespace saturate::kernels {
namespace {

struct Weighted {
  uint64_t sum;  // of the weights so far
  int32_t id;
};

template <class T>
int32_t draw(const SampleStepArgs& a, int64_t row) {
  const SampleControls& c = *a.controls;
  const T* z = static_cast<const T*>(a.logits) + row * a.ld;
  std::vector<Weighted> tokens;
  for (int32_t id = 0; id < a.vocab; ++id) {
    if (!std::isnan(z[id])) tokens.push_back({0, id});
  }
  if (tokens.empty()) return -1;
  const auto before = [z](const Weighted& x, const Weighted& y) {
    return z[x.id] != z[y.id] ? z[x.id] > z[y.id] : x.id < y.id;
  };
  const int32_t likeliest = std::min_element(tokens.begin(), tokens.end(), before)->id;
  if (!std::isfinite(z[likeliest])) return -1;
  if (!(c.temperature > 0.0f)) return likeliest;
  const auto kept =
      c.top_k > 0 ? std::min<size_t>(tokens.size(), static_cast<size_t>(c.top_k)) : tokens.size();
  std::partial_sort(tokens.begin(), tokens.begin() + static_cast<int64_t>(kept), tokens.end(),
                    before);
  const T top = z[likeliest];
  uint64_t sum = 0;
  for (size_t i = 0; i < kept; ++i) {
    const T weight = std::exp((z[tokens[i].id] - top) / static_cast<T>(c.temperature));
    sum += static_cast<uint64_t>(weight * static_cast<T>(kWeightOne));
    tokens[i].sum = sum;
  }
  const auto reaches = [&](uint64_t target) {
    return std::partition_point(tokens.begin(), tokens.begin() + static_cast<int64_t>(kept),
                                [target](const Weighted& w) { return w.sum < target; });
  };
  if (c.top_p < 1.0f) sum = reaches(share_target(c.top_p, sum))->sum;
  return reaches(draw_target(c, a.state.streams[row], a.state.positions[row], sum))->id;
}

}  // namespace

void sample_step_cpu(const Context&, const SampleStepArgs& a) {
  parallel_for(a.rows, 1, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      if (a.state.finished[row] != 0) continue;
      const bool prompt = a.state.positions[row] + 1 < a.state.prompt_lengths[row];
      advance(a, row,
              prompt                  ? -1
              : a.dtype == DType::f64 ? draw<double>(a, row)
                                      : draw<float>(a, row));
    }
  });
}

}  // namespace saturate::kernels
