// SPDX-License-Identifier: Apache-2.0
#include "kernels/gemm/tune/tune_problem.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>

#include "base/philox.h"
#include "kernels/elementwise/elementwise.h"
#include "runtime/parallel_for.h"

namespace saturate::kernels {
namespace {

constexpr int64_t kPattern = 4194301;  // values; prime, so that rows of no length repeat in step
constexpr int kKnownByte = 0x3F;       // C where D = A B + C: every element is this byte repeated
constexpr int64_t kAllRowsUpTo = 192;  // rows of a problem that is checked whole

double known_c(DType type) {
  if (type == DType::f16) return std::ldexp(1.0 + 0x33F / 1024.0, 0);  // 0x3F3F
  return type == DType::bf16 ? std::ldexp(1.0 + 0x3F / 128.0, -1)
                             : std::ldexp(1.0 + 0x3F3F3F / 8388608.0, -1);
}

int64_t up_to_256(int64_t bytes) { return (bytes + 255) / 256 * 256; }

std::vector<float> pattern(uint64_t key) {
  std::vector<float> v(static_cast<size_t>(kPattern));
  parallel_for(kPattern, 1 << 16, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      v[static_cast<size_t>(i)] =
          static_cast<float>(philox4x32(key, static_cast<uint64_t>(i), 0).x[0] >> 8) * 0x1p-23f -
          1.0f;
    }
  });
  return v;
}

// Fills `out` with the pattern of `key`, repeated; returns the pattern as rounded to `type`.
std::vector<float> fill(const Context& ctx, const Stream& stream, const Buffer& out, DType type,
                        uint64_t key) {
  std::vector<float> host = pattern(key);
  const Buffer wide(ctx.device, host.size() * sizeof(float));
  const Buffer typed(ctx.device, host.size() * size_of(type));
  copy_to_device(stream, wide.data(), host.data(), wide.bytes());
  cast(ctx, {.x = wide.data(),
             .y = typed.data(),
             .count = kPattern,
             .x_type = DType::f32,
             .y_type = type});
  for (size_t at = 0; at < out.bytes(); at += typed.bytes()) {
    copy_on_device(stream, out.as<char>() + at, typed.data(),
                   std::min(typed.bytes(), out.bytes() - at));
  }
  cast(ctx, {.x = typed.data(),
             .y = wide.data(),
             .count = kPattern,
             .x_type = type,
             .y_type = DType::f32});
  copy_to_host(stream, host.data(), wide.data(), wide.bytes());
  stream.synchronize();
  return host;
}

// Elements begin, begin + step ... of an array that fill() filled.
std::vector<double> elements(const std::vector<float>& values, int64_t begin, int64_t step,
                             int64_t count) {
  std::vector<double> v(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    v[static_cast<size_t>(i)] =
        static_cast<double>(values[static_cast<size_t>((begin + i * step) % kPattern)]);
  }
  return v;
}

int64_t padded_ld(const GemmKey& key, int64_t cols) { return key.aligned ? cols : cols + 1; }

}  // namespace

TuneProblem::TuneProblem(const Context& ctx, const Stream& stream, const GemmKey& key,
                         int64_t l2_bytes)
    : ctx_(ctx), stream_(stream), key_(key) {
  const MatmulArgs x = args(0);
  const int64_t size = static_cast<int64_t>(size_of(key.ab_type));
  a_bytes_ = up_to_256((key.ta == Transpose::yes ? key.k : key.m) * x.lda * size);
  b_bytes_ = up_to_256((key.tb == Transpose::yes ? key.n : key.k) * x.ldb * size);
  d_bytes_ = up_to_256(key.m * x.ldd * static_cast<int64_t>(size_of(key.d_type)));
  const int64_t set = a_bytes_ + b_bytes_ + d_bytes_;
  sets_ = static_cast<size_t>(std::clamp<int64_t>((2 * l2_bytes + set - 1) / set, 1, 4096));
  const auto bytes = [&](int64_t one) { return static_cast<size_t>(one) * sets_; };
  a_ = Buffer(ctx.device, bytes(a_bytes_));
  b_ = Buffer(ctx.device, bytes(b_bytes_));
  d_ = Buffer(ctx.device, bytes(d_bytes_));
  const std::vector<float> a = fill(ctx, stream, a_, key.ab_type, 1);
  const std::vector<float> b = fill(ctx, stream, b_, key.ab_type, 2);
  fill(ctx, stream, d_, key.d_type, 3);
  std::vector<double> bias(static_cast<size_t>(key.n), 0.0);
  if (key.bias) {
    bias_ = Buffer(ctx.device, static_cast<size_t>(key.n) * size_of(key.ab_type));
    bias = elements(fill(ctx, stream, bias_, key.ab_type, 4), 0, 1, key.n);
  }
  if (key.m <= kAllRowsUpTo) {
    for (int64_t i = 0; i < key.m; ++i) rows_.push_back(i);
  } else {
    rows_ = {0, 1, 127, key.m / 3, key.m / 2, 2 * key.m / 3, key.m - 2, key.m - 1};
  }
  make_reference(a, b, bias);
}

MatmulArgs TuneProblem::args(size_t set) const {
  const auto part = [&](const Buffer& b, int64_t bytes) {
    return b.as<char>() + static_cast<size_t>(bytes) * set;
  };
  const int64_t ldd = padded_ld(key_, key_.n);
  return {.a = part(a_, a_bytes_),
          .b = part(b_, b_bytes_),
          .c = part(d_, d_bytes_),
          .d = part(d_, d_bytes_),
          .bias = bias_.data(),
          .m = key_.m,
          .n = key_.n,
          .k = key_.k,
          .lda = padded_ld(key_, key_.ta == Transpose::yes ? key_.m : key_.k),
          .ldb = padded_ld(key_, key_.tb == Transpose::yes ? key_.k : key_.n),
          .ldc = ldd,
          .ldd = ldd,
          .ta = key_.ta,
          .tb = key_.tb,
          .ab_type = key_.ab_type,
          .d_type = key_.d_type,
          .beta = key_.accumulates ? 1.0f : 0.0f,
          .allow_tf32 = key_.tf32};
}

void TuneProblem::make_reference(const std::vector<float>& a, const std::vector<float>& b,
                                 const std::vector<double>& bias) {
  const MatmulArgs x = args(0);
  const auto n = static_cast<size_t>(key_.n);
  expected_.assign(rows_.size() * n, 0.0);
  bound_.assign(rows_.size() * n, 0.0);
  std::vector<std::vector<double>> a_rows;
  for (const int64_t row : rows_) {
    a_rows.push_back(x.ta == Transpose::yes ? elements(a, row, x.lda, key_.k)
                                            : elements(a, row * x.lda, 1, key_.k));
  }
  // Sums and sums of magnitudes of a strip of columns, a row of B (or a column of B^T) at a time.
  parallel_for(key_.n, 64, [&](int64_t begin, int64_t end) {
    for (int64_t at = 0; at < (x.tb == Transpose::yes ? end - begin : key_.k); ++at) {
      const bool by_column = x.tb == Transpose::yes;
      const std::vector<double> line = by_column ? elements(b, (begin + at) * x.ldb, 1, key_.k)
                                                 : elements(b, at * x.ldb + begin, 1, end - begin);
      for (size_t r = 0; r < rows_.size(); ++r) {
        double* const sum = &expected_[r * n + static_cast<size_t>(begin)];
        double* const magnitude = &bound_[r * n + static_cast<size_t>(begin)];
        for (size_t i = 0; i < line.size(); ++i) {
          const double p = a_rows[r][by_column ? i : static_cast<size_t>(at)] * line[i];
          sum[by_column ? static_cast<size_t>(at) : i] += p;
          magnitude[by_column ? static_cast<size_t>(at) : i] += std::fabs(p);
        }
      }
    }
  });
  const double c = key_.accumulates ? known_c(key_.d_type) : 0.0;
  const double sum_eps = epsilon_of(DType::f32) * (std::sqrt(static_cast<double>(key_.k)) + 3);
  for (size_t e = 0; e < expected_.size(); ++e) {
    const double product = expected_[e], bias_j = bias[e % n], magnitude = bound_[e],
                 v = product + c + bias_j;
    expected_[e] = v;
    // cuBLASLt rounds what it adds C or a bias to: where both nearly cancel, that rounding shows.
    const double rounded =
        (key_.bias ? std::fabs(v - bias_j) : 0) + (key_.accumulates ? std::fabs(product) : 0);
    bound_[e] = sum_eps * (magnitude + std::fabs(c) + std::fabs(bias_j)) +
                2 * epsilon_of(key_.d_type) * (std::fabs(v) + rounded) +
                (key_.tf32 ? epsilon_of(DType::f16) * magnitude : 0);  // f16 and TF32: 10 bits
  }
}

std::string TuneProblem::check(const Launch& launch) const {
  const MatmulArgs x = args(0);
  fill_bytes(stream_, x.d, key_.accumulates ? kKnownByte : 0xFF, static_cast<size_t>(d_bytes_));
  launch(x);
  const auto n = static_cast<size_t>(key_.n);
  const size_t size = size_of(key_.d_type);
  const Buffer narrow(ctx_.device, rows_.size() * n * size),
      wide(ctx_.device, rows_.size() * n * 4);
  for (size_t r = 0; r < rows_.size(); ++r) {
    copy_on_device(stream_, narrow.as<char>() + r * n * size,
                   static_cast<char*>(x.d) + static_cast<size_t>(rows_[r] * x.ldd) * size,
                   n * size);
  }
  cast(ctx_, {.x = narrow.data(),
              .y = wide.data(),
              .count = static_cast<int64_t>(rows_.size() * n),
              .x_type = key_.d_type,
              .y_type = DType::f32});
  std::vector<float> got(rows_.size() * n);
  copy_to_host(stream_, got.data(), wide.data(), wide.bytes());
  stream_.synchronize();
  for (size_t e = 0; e < got.size(); ++e) {
    const double v = static_cast<double>(got[e]);
    if (std::fabs(v - expected_[e]) <= bound_[e]) continue;  // NaN is not
    return fmt::format("d[{}][{}] is {}, the reference {} with a bound of {:.2g}", rows_[e / n],
                       e % n, v, expected_[e], bound_[e]);
  }
  return "";
}

std::vector<double> TuneProblem::time_once(const std::vector<const Launch*>& launches,
                                           const std::vector<double>& expected_ms) {
  constexpr double kLeastMs = 0.1;
  while (events_.size() < 2 * launches.size()) events_.emplace_back(ctx_.device, Event::Timing::on);
  std::vector<int> repeats;
  for (size_t i = 0; i < launches.size(); ++i) {
    const double one = std::max(expected_ms[i], 1e-3);
    repeats.push_back(static_cast<int>(std::clamp(std::ceil(kLeastMs / one), 1.0, 50.0)));
    events_[2 * i].record(stream_);
    for (int r = 0; r < repeats.back(); ++r) {
      (*launches[i])(args(next_set_));
      next_set_ = (next_set_ + 1) % sets_;
    }
    events_[2 * i + 1].record(stream_);
  }
  stream_.synchronize();
  std::vector<double> ms;
  for (size_t i = 0; i < launches.size(); ++i) {
    ms.push_back(Event::elapsed_ms(events_[2 * i], events_[2 * i + 1]) / repeats[i]);
  }
  return ms;
}

void TuneProblem::warm_up(const Launch& launch, double seconds) {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point begin = Clock::now();
  while (std::chrono::duration<double>(Clock::now() - begin).count() < seconds) {
    for (int i = 0; i < 8; ++i) {
      launch(args(next_set_));
      next_set_ = (next_set_ + 1) % sets_;
    }
    stream_.synchronize();
  }
}

}  // namespace saturate::kernels
