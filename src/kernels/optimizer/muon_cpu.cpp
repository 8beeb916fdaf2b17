// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include "base/half.h"
#include "kernels/host/vector_math.h"
#include "kernels/optimizer/muon_impl.h"
#include "runtime/parallel_for.h"

namespace saturate::kernels {
namespace {

// f(begin, end, block) for each block of kNormBlock elements of each matrix.
template <class F>
void for_blocks(const MuonPartArgs& x, const F& f) {
  const int64_t each = norm_blocks(x.matrix());
  parallel_for(x.muon.batch * each, 1, [&](int64_t first, int64_t last) {
    for (int64_t b = first; b < last; ++b) {
      const int64_t start = b / each * x.matrix(), into = b % each * kNormBlock;
      f(start + into, start + std::min(into + kNormBlock, x.matrix()), b);
    }
  });
}

template <class T>
void momentum_of(const MuonPartArgs& p) {
  const AdamWStep<T> step = muon_step<T>(p.muon);
  const T mu = p.muon.momentum;
  for_blocks(p, [&](int64_t begin, int64_t end, int64_t block) {
    const T* g = static_cast<const T*>(p.muon.grad);
    T *m = static_cast<T*>(p.muon.m), *x = static_cast<T*>(p.x);
    for (int64_t i = begin; i < end; ++i)
      x[i] = step.good ? muon_direction(mu, g[i] * step.gradient, m[i]) : T(0);
    p.partial[block] = lane_sum<double>(end - begin, [&](int64_t i) {
      return static_cast<double>(x[begin + i]) * static_cast<double>(x[begin + i]);
    });
  });
}

template <class T>
void scale_of(const MuonPartArgs& p) {
  const int64_t each = norm_blocks(p.matrix());
  for_blocks(p, [&](int64_t begin, int64_t end, int64_t block) {
    double sum = 0;
    for (int64_t b = block / each * each; b < (block / each + 1) * each; ++b) sum += p.partial[b];
    const T factor = static_cast<T>(1.0 / std::max(std::sqrt(sum), 1e-7));
    T* x = static_cast<T*>(p.x);
    for (int64_t i = begin; i < end; ++i) x[i] *= factor;
  });
}

template <class T>
void apply_of(const MuonPartArgs& p) {
  const AdamWStep<T> step = muon_step<T>(p.muon);
  if (!step.good) return;
  const T size = muon_size<T>(p.muon);
  for_blocks(p, [&](int64_t begin, int64_t end, int64_t) {
    const T* x = static_cast<const T*>(p.x);
    T *w = static_cast<T*>(p.muon.master), *ema = static_cast<T*>(p.muon.ema);
    for (int64_t i = begin; i < end; ++i) {
      w[i] -= step.lr * (size * x[i] + step.decay * w[i]);
      if (ema != nullptr) ema[i] = step.ema * ema[i] + (T(1) - step.ema) * w[i];
    }
  });
}

}  // namespace

void muon_momentum_cpu(const Context&, const MuonPartArgs& x) {
  x.muon.dtype == DType::f64 ? momentum_of<double>(x) : momentum_of<float>(x);
}
void muon_scale_cpu(const Context&, const MuonPartArgs& x) {
  x.muon.dtype == DType::f64 ? scale_of<double>(x) : scale_of<float>(x);
}
void muon_apply_cpu(const Context&, const MuonPartArgs& x) {
  x.muon.dtype == DType::f64 ? apply_of<double>(x) : apply_of<float>(x);
}

}  // namespace saturate::kernels
