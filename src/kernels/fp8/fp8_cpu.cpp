// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <atomic>
#include <cmath>
#include <vector>

#include "kernels/activation/curve_cpu.h"
#include "kernels/fp8/fp8_codes.h"
#include "kernels/fp8/fp8_impl.h"
#include "kernels/gemm/matmul.h"
#include "kernels/optimizer/step_rules.h"
#include "runtime/parallel_for.h"

namespace saturate::kernels {
namespace {

constexpr int64_t kGrain = 1 << 13;

// Not less than NaN: a value that is no number shows.
float larger(float a, float b) { return a > b || a - a != 0.0f ? a : b; }

float amax_of(const float* x, int64_t count) {
  std::atomic<float> most = 0.0f;
  parallel_for(count, kGrain, [&](int64_t begin, int64_t end) {
    float own = 0.0f;
    for (int64_t i = begin; i < end; ++i) own = larger(std::fabs(x[i]), own);
    float before = most.load();
    while (!most.compare_exchange_weak(before, larger(own, before))) {
    }
  });
  return most;
}

const std::array<float, 256>& values_of(Fp8Format f) {
  static const std::array<float, 256> e4m3 = fp8_values(Fp8Format::e4m3),
                                      e5m2 = fp8_values(Fp8Format::e5m2);
  return f == Fp8Format::e4m3 ? e4m3 : e5m2;
}

void decode(const uint8_t* codes, int64_t count, Fp8Format format, float* out) {
  const std::array<float, 256>& values = values_of(format);
  parallel_for(count, kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) out[i] = values[codes[i]];
  });
}

template <ActivationKind kKind>
void prepare_as(const Fp8QuantizeArgs& x, float* v) {
  const auto *const in = static_cast<const float*>(x.x), *const given =
                                                             static_cast<const float*>(x.given);
  parallel_for(x.rows * x.cols, kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      v[i] = x.prepare == Fp8Prepare::activation ? curve<kKind>(in[i]).value
                                                 : in[i] * curve<kKind>(given[i]).slope;
  });
}

void prepare(const Fp8QuantizeArgs& x, float* v) {
  switch (x.activation) {
    case ActivationKind::relu:
      return prepare_as<ActivationKind::relu>(x, v);
    case ActivationKind::gelu_tanh:
      return prepare_as<ActivationKind::gelu_tanh>(x, v);
    case ActivationKind::gelu_erf:
      return prepare_as<ActivationKind::gelu_erf>(x, v);
    case ActivationKind::silu:
      return prepare_as<ActivationKind::silu>(x, v);
    case ActivationKind::identity:
      return prepare_as<ActivationKind::identity>(x, v);
  }
}

// Each column in order of the rows.
void sum_columns(const Fp8QuantizeArgs& x, const float* v) {
  parallel_for(x.cols, std::max<int64_t>(1, kGrain / x.rows), [&](int64_t begin, int64_t end) {
    for (int64_t c = begin; c < end; ++c) {
      double sum = x.add_to_column_sum ? x.column_sum[c] : 0;
      for (int64_t r = 0; r < x.rows; ++r) sum += v[r * x.cols + c];
      x.column_sum[c] = static_cast<float>(sum);
    }
  });
}

}  // namespace

void fp8_quantize_cpu(const Context&, const Fp8QuantizeArgs& x) {
  std::vector<float> prepared;
  const auto* in = static_cast<const float*>(x.x);
  if (x.prepare != Fp8Prepare::nothing) {
    prepared.resize(static_cast<size_t>(x.rows * x.cols));
    prepare(x, prepared.data());
    in = prepared.data();
  }
  if (x.copy != nullptr) std::copy_n(in, x.rows * x.cols, static_cast<float*>(x.copy));
  if (x.column_sum != nullptr) sum_columns(x, in);
  Fp8Site& site = *x.site;
  site.amax = larger(amax_of(in, x.rows * x.cols), site.amax);
  const float scale = fp8_scale_of(site, x.scale_known, x.format);
  site.inverse = 1.0f / scale;
  const auto code = [&](int64_t i) { return fp8_encode(in[i] * scale, x.format); };
  parallel_for(x.rows, std::max<int64_t>(1, kGrain / x.cols), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r)
      for (int64_t c = 0; c < x.cols; ++c) {
        const uint8_t one = code(r * x.cols + c);
        if (x.y != nullptr) x.y[r * x.cols + c] = one;
        if (x.transposed != nullptr) x.transposed[c * x.rows + r] = one;
      }
  });
}

void fp8_quantize_weights_cpu(const Context& ctx, const Fp8WeightsArgs& x) {
  for (const Fp8WeightArgs& m : x.matrices)
    fp8_quantize_cpu(ctx, {.x = m.x,
                           .y = m.y,
                           .transposed = m.transposed,
                           .site = m.site,
                           .rows = m.rows,
                           .cols = m.cols,
                           .dtype = x.dtype,
                           .scale_known = true});
}

void fp8_roll_cpu(const Context&, const Fp8RollArgs& x) {
  const bool good = is_good(norm_of(*x.state, x.token_budget));
  for (int64_t i = 0; i < x.count; ++i) {
    float amax = x.sites[i].amax;
    for (int64_t r = 0; x.gathered != nullptr && r < x.ranks; ++r)
      amax = larger(x.gathered[r * x.count + i].amax, amax);
    fp8_end_step(x.sites[i], amax, good, fp8_format_of(i));
  }
}

void fp8_matmul_cpu(const Context& ctx, const Fp8MatmulArgs& x) {
  auto* const a = static_cast<float*>(x.scratch);
  float* const b = a + x.m * x.k;
  decode(x.a, x.m * x.k, x.a_format, a);
  decode(x.b, x.n * x.k, Fp8Format::e4m3, b);
  matmul(ctx, {.a = a,
               .b = b,
               .c = x.c,
               .d = x.d,
               .bias = x.bias,
               .m = x.m,
               .n = x.n,
               .k = x.k,
               .lda = x.k,
               .ldb = x.k,
               .ldc = x.n,
               .ldd = x.n,
               .tb = Transpose::yes,
               .alpha = x.a_site->inverse * x.b_site->inverse,
               .beta = x.c != nullptr ? 1.0f : 0.0f});
}

}  // namespace saturate::kernels
