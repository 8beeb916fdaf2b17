// SPDX-License-Identifier: Apache-2.0
#include "kernels/attention/int8/int8.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "kernels/testing/attention_expect.h"

namespace saturate::kernels {
namespace {

std::vector<Shape> shapes() {
  return {
      {"one_by_one", {1}, {1}, 1, 1, 64},
      {"one_tile", {128}, {64}, 2, 2, 64},
      {"sentences", {7, 32, 19, 1, 33}, {7, 32, 19, 1, 33}, 2, 2, 64, false, 0.0f, true, 5, 5},
      {"empty", {0, 9, 0, 4, 0}, {3, 0, 0, 12, 5}, 2, 2, 128, false, 0.0f, false, 2, 1},
      {"causal", {130, 300}, {130, 300}, 3, 3, 64, true, 0.0f, true, 1, 1},
      {"cross_causal", {19, 200}, {30, 170}, 2, 2, 128, true},
      {"grouped", {20, 145}, {233, 8}, 6, 2, 128},
      {"long", {70}, {1025}, 2, 1, 64},
  };
}

// Scratch filled with NaN: as much as is asked for and no more. It stays until the next call.
void launch(const Context& ctx, const AttentionArgs& args) {
  static Buffer scratch;
  const int64_t bytes = attention_forward_int8_scratch(args);
  const std::vector<char> poison(static_cast<size_t>(bytes), '\xFF');
  scratch = DeviceArrays(ctx.device).raw(poison.data(), poison.size());
  attention_forward_int8(ctx, {args, scratch.data(), bytes});
}
constexpr Impl<AttentionArgs> kImpl{"attention_forward_int8", DeviceKind::cuda,
                                    attention_forward_int8_fits, launch};

// int8.h's bound on the error of the scores of each sequence and head, whatever row and key.
struct ScoreError {
  double largest_q = 0, largest_k = 0, q_sum = 0, k_sum = 0;  // sums: of magnitudes along a head
};
Values score_errors(const Problem& p) {
  const AttentionArgs& a = p.args.forward;
  const int64_t D = a.head_size;
  Values bound(static_cast<size_t>(a.heads * a.q_rows));
  for (int64_t s = 0; s < a.sequences; ++s)
    for (int64_t h = 0; h < a.heads; ++h) {
      const int64_t g = h / (a.heads / a.kv_heads), n = p.cu_k[s + 1] - p.cu_k[s];
      const auto k_at = [&](int64_t j, int64_t d) {
        return p.input[p.k_at + (p.cu_k[s] + j) * a.k_stride + g * D + d];
      };
      ScoreError e;
      Values mean(static_cast<size_t>(D));
      for (int64_t j = 0; j < n; ++j)
        for (int64_t d = 0; d < D; ++d) mean[d] += k_at(j, d) / static_cast<double>(n);
      for (int64_t j = 0; j < n; ++j) {
        double sum = 0;
        for (int64_t d = 0; d < D; ++d) {
          const double x = std::fabs(k_at(j, d) - mean[d]);
          e.largest_k = std::max(e.largest_k, x), sum += x;
        }
        e.k_sum = std::max(e.k_sum, sum);
      }
      for (int64_t i = p.cu_q[s]; i < p.cu_q[s + 1]; ++i) {
        double most = 0, sum = 0;
        for (int64_t d = 0; d < D; ++d) {
          const double x = std::fabs(p.input[i * a.q_stride + h * D + d]);
          most = std::max(most, x), sum += x;
        }
        const double qs = most / 127, ks = e.largest_k / 127;
        // 2^-7 more for integers that rounding of x / scale in fp32 put on the other side.
        bound[h * a.q_rows + i] =
            static_cast<double>(a.scale) * (1 + 0x1p-7) *
            (qs / 2 * e.k_sum + ks / 2 * sum + static_cast<double>(D) * qs * ks / 4);
      }
    }
  return bound;
}

// Every element of o is within its bound; returns the errors' root mean square over that of o.
double expect_within_bounds(const Problem& p, const Result& got) {
  const AttentionArgs& a = p.args.forward;
  const Result want = truth(p);
  const Bounds b = bounds_of(p, want);
  const Values scores = score_errors(p);
  double errors = 0, sizes = 0;
  int reported = 0;
  for (int64_t r = 0; r < a.q_rows && reported < 3; ++r)
    for (int64_t x = 0; x < a.heads * a.head_size; ++x) {
      const int64_t at = r * a.o_stride + x, row = x / a.head_size * a.q_rows + r;
      // Probabilities are off by a factor of at most e^2e; v is in [-1, 1].
      const double tolerance = b.o[row] + std::expm1(2 * scores[row]) +
                               epsilon_of(p.dtype) * std::fabs(want.o[at]) + 0x1p-24;
      const double error = std::fabs(got.o[at] - want.o[at]);
      errors += error * error, sizes += want.o[at] * want.o[at];
      if (error <= tolerance) continue;
      ADD_FAILURE() << "row " << r << " column " << x << ": " << got.o[at] << ", expected "
                    << want.o[at] << " +- " << tolerance;
      if (++reported == 3) break;
    }
  for (size_t i = 0; i < b.lse.size(); ++i) {
    if (std::isinf(want.lse[i])) {
      EXPECT_EQ(got.lse[i], want.lse[i]) << i;
    } else {
      EXPECT_NEAR(got.lse[i], want.lse[i], b.lse[i] + scores[i] + 1e-4) << i;
    }
  }
  for (size_t i = 0; i < want.o.size(); ++i)
    if (std::isnan(want.o[i])) {
      EXPECT_TRUE(std::isnan(got.o[i])) << "element " << i << " was written";
    }
  return sizes > 0 ? std::sqrt(errors / sizes) : 0;
}

// Uniform q and k in [-1, 1] with scales of 1/127 are off by 1/127/sqrt(12) and have deviation
// 0.58, so scores (scale 1.5/sqrt(D)) are off by 0.003 in the mean, and o relatively by as much, to
// which rounding in 16 bits adds 0.004. Keys of 30 +- 1 rounded without their mean would make it
// 0.06.
constexpr double kMostError = 0.03;

bool have_gpu() { return capability_of(Device{DeviceKind::cuda, 0}).major >= 8; }

TEST(AttentionInt8, MatchesReference) {
  if (!have_gpu()) GTEST_SKIP() << "no GPU of compute capability 8.0";
  const Device device{DeviceKind::cuda, 0};
  for (const Shape& shape : shapes())
    for (DType type : {DType::bf16, DType::f16}) {
      SCOPED_TRACE(std::string(shape.name) + " " + name_of(type));
      const Problem p(shape, type);
      const Result first = run(p, device, &kImpl, nullptr), again = run(p, device, &kImpl, nullptr);
      EXPECT_LT(expect_within_bounds(p, first), kMostError);
      EXPECT_TRUE(same_bits(first.o, again.o) && same_bits(first.lse, again.lse))
          << "differs run to run";
    }
}

// Keys that have a large part in common: rounded as they are, their differences would vanish.
TEST(AttentionInt8, TakesTheMeanOfKeysAway) {
  if (!have_gpu()) GTEST_SKIP() << "no GPU of compute capability 8.0";
  for (int64_t head_size : {64, 128}) {
    Problem p({"", {200, 90}, {200, 90}, 2, 2, head_size}, DType::f16);
    const AttentionArgs& a = p.args.forward;
    for (int64_t j = 0; j < a.k_rows; ++j)
      for (int64_t x = 0; x < 2 * head_size; ++x) {
        double& k = p.input[p.k_at + j * a.k_stride + x];
        k = rounded(k + (x % 2 != 0 ? 30 : -30), DType::f16);
      }
    const Result got = run(p, {DeviceKind::cuda, 0}, &kImpl, nullptr);
    EXPECT_LT(expect_within_bounds(p, got), kMostError);
  }
}

// Zeros have no scale of their own: every score is 0 and o the mean of v.
TEST(AttentionInt8, ZerosAreNumbers) {
  if (!have_gpu()) GTEST_SKIP() << "no GPU of compute capability 8.0";
  Problem p({"", {40}, {100}, 1, 1, 64}, DType::bf16);
  const AttentionArgs& a = p.args.forward;
  for (int64_t i = 0; i < p.v_at; ++i) p.input[i] = 0;
  expect_right(p, run(p, {DeviceKind::cuda, 0}, &kImpl, nullptr));
  EXPECT_EQ(a.kv_heads, 1);
}

TEST(AttentionInt8, RefusesWhatItDoesNotCompute) {
  const auto reason = [](const Shape& shape, DType type = DType::bf16) {
    return std::string(
        attention_forward_int8_fits(Context{}, Problem(shape, type).with_any_pointers().forward)
            .reason);
  };
  EXPECT_EQ(reason({"", {3}, {3}, 1, 1, 64}), "the CPU does not compute it");
  EXPECT_EQ(reason({"", {3}, {3}, 1, 1, 64}, DType::f32), "dtype is neither bf16 nor f16");
  EXPECT_EQ(reason({"", {3}, {3}, 1, 1, 32}), "head size is neither 64 nor 128");
  EXPECT_EQ(reason({"", {3}, {3}, 1, 1, 64, false, 0.1f}), "dropout");
  AttentionArgs odd = Problem({"", {3}, {3}, 1, 1, 64}, DType::bf16).with_any_pointers().forward;
  odd.k_stride += 1;
  EXPECT_STREQ(attention_forward_int8_fits(Context{}, odd).reason,
               "q, k, v or o is not aligned to 16 bytes, or its stride is no multiple of 8");
}

}  // namespace
}  // namespace saturate::kernels
