// SPDX-License-Identifier: Apache-2.0
#include "kernels/attention/attention.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "kernels/attention/attention_cpu_kernel.h"
#include "kernels/attention/attention_problem.h"

namespace saturate::kernels {
namespace {

// Bounds on the error of each row of the results, from the rounding of the formats: u is the unit
// of the stored type, f of fp32 sums over the head and of exp. Products of independent roundings
// along the head grow with the root of the sum of squares; sums over keys or queries are taken in
// full.
struct Bounds {
  Values o, lse, d_q, d_k, d_v;  // (heads or kv_heads, rows)
};

Bounds bounds_of(const Problem& p, const Result& t) {
  const AttentionArgs& a = p.args.forward;
  const int64_t D = a.head_size, group = a.heads / a.kv_heads;
  const double u = epsilon_of(p.dtype), keep_scale = 1 / (1 - static_cast<double>(a.dropout));
  const double f = 8 * epsilon_of(wide_of(p.dtype)) * std::sqrt(static_cast<double>(D));
  Bounds b{Values(a.heads * a.q_rows), Values(a.heads * a.q_rows), Values(a.heads * a.q_rows),
           Values(a.kv_heads * a.k_rows), Values(a.kv_heads * a.k_rows)};
  for (int64_t s = 0; s < a.sequences; ++s)
    for (int64_t h = 0; h < a.heads; ++h)
      for (int64_t i = p.cu_q[s]; i < p.cu_q[s + 1]; ++i) {
        const int64_t kv = h / group, at = h * a.q_rows + i;
        const double* q = &p.input[i * a.q_stride + h * D];
        const double* d_o = &p.d_o[i * a.o_stride + h * D];
        const double* o = &t.o[i * a.o_stride + h * D];
        double delta = 0, delta_squares = 0;
        for (int64_t d = 0; d < D; ++d) {
          delta += d_o[d] * o[d];
          delta_squares += d_o[d] * o[d] * d_o[d] * o[d];
        }
        int64_t keys = p.cu_k[s + 1] - p.cu_k[s];
        if (a.causal) keys = std::min<int64_t>(keys, i - p.cu_q[s] + 1);
        for (int64_t n = 0; n < keys; ++n) {
          const int64_t j = p.cu_k[s] + n;
          const double* k = &p.input[p.k_at + j * a.k_stride + kv * D];
          const double* v = &p.input[p.v_at + j * a.v_stride + kv * D];
          double score = 0, d_p = 0, squares = 0, score_squares = 0;
          for (int64_t d = 0; d < D; ++d) {
            score += q[d] * k[d];
            score_squares += q[d] * k[d] * q[d] * k[d];
            d_p += d_o[d] * v[d];
            squares += d_o[d] * v[d] * d_o[d] * v[d];
          }
          const double prob = std::exp(score * a.scale - t.lse[at]);
          // Relative error of p: of the score, of lse (at most log of the keys plus it) and of exp.
          const double e = f * (1 + 2 * std::fabs(score * a.scale) + std::fabs(t.lse[at]) +
                                a.scale * std::sqrt(score_squares));
          const double p_error = prob * keep_scale * (u + e);
          const double size = keep_scale * (std::fabs(d_p) + std::sqrt(squares)) +
                              std::fabs(delta) + std::sqrt(delta_squares);
          const double d_s = a.scale * prob * size * (u + e);
          b.o[at] += p_error;
          b.lse[at] = std::max(b.lse[at], 2 * e);
          b.d_q[at] += d_s;
          b.d_k[kv * a.k_rows + j] += d_s;
          b.d_v[kv * a.k_rows + j] += p_error;
        }
      }
  return b;
}

// `rows` rows of `heads` heads: near the truth, and every other element still the poison.
void expect_near(const char* what, const Values& got, const Values& want, int64_t first,
                 int64_t rows, int64_t stride, int64_t heads, int64_t D, const Values& bound,
                 double unit) {
  int reported = 0;
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t x = 0; x < heads * D; ++x) {
      const int64_t at = first + r * stride + x;
      // The inputs are in [-1, 1], which the bound stands for; storing the result costs `unit`
      // more.
      const double tolerance = bound[x / D * rows + r] + unit * std::fabs(want[at]);
      if (std::fabs(got[at] - want[at]) <= tolerance) continue;
      ADD_FAILURE() << what << " row " << r << " head " << x / D << " element " << x % D << ": "
                    << got[at] << ", expected " << want[at] << " +- " << tolerance;
      if (++reported == 3) return;
    }
}

void expect_right(const Problem& p, const Result& got) {
  const AttentionArgs& a = p.args.forward;
  const Result want = truth(p);
  const Bounds b = bounds_of(p, want);
  const double u = epsilon_of(p.dtype);
  expect_near("o", got.o, want.o, 0, a.q_rows, a.o_stride, a.heads, a.head_size, b.o, u);
  for (int64_t i = 0; i < p.lse_size; ++i) {
    if (std::isinf(want.lse[i])) {
      ASSERT_EQ(got.lse[i], want.lse[i]) << "lse " << i;
    } else {
      ASSERT_NEAR(got.lse[i], want.lse[i], b.lse[i]) << "lse " << i;
    }
  }
  expect_near("d_q", got.d_input, want.d_input, 0, a.q_rows, a.q_stride, a.heads, a.head_size,
              b.d_q, u);
  expect_near("d_k", got.d_input, want.d_input, p.k_at, a.k_rows, a.k_stride, a.kv_heads,
              a.head_size, b.d_k, u);
  expect_near("d_v", got.d_input, want.d_input, p.v_at, a.k_rows, a.v_stride, a.kv_heads,
              a.head_size, b.d_v, u);
  // What the reference leaves as poison (gaps between rows, guards) every implementation must
  // leave.
  const auto expect_untouched = [](const char* what, const Values& g, const Values& w) {
    for (size_t i = 0; i < w.size(); ++i)
      ASSERT_EQ(std::isnan(g[i]), std::isnan(w[i])) << what << " element " << i << " is " << g[i];
  };
  expect_untouched("o", got.o, want.o);
  expect_untouched("lse", got.lse, want.lse);
  expect_untouched("d_input", got.d_input, want.d_input);
}

const std::vector<Shape>& shapes() {
  static const std::vector<Shape> all = {
      {"one_by_one", {1}, {1}, 1, 1, 64},
      {"sentences", {7, 32, 19, 1, 33}, {7, 32, 19, 1, 33}, 2, 2, 64, false, 0.0f, true, 5, 5},
      {"sentences_causal", {7, 32, 19, 1, 33}, {7, 32, 19, 1, 33}, 2, 2, 64, true, 0.0f, true},
      {"cross", {5, 64, 16, 3}, {17, 1, 40, 65}, 2, 2, 32, false, 0.0f, false, 3, 9},
      {"empty", {0, 9, 0, 4, 0}, {3, 0, 0, 12, 5}, 2, 2, 64, false, 0.0f, false, 2, 1},
      {"dropout", {37, 11}, {50, 21}, 2, 2, 64, false, 0.3f},
      {"dropout_causal", {130, 21}, {130, 21}, 2, 2, 64, true, 0.1f, true, 1, 1},
      {"grouped", {20, 45}, {33, 8}, 6, 2, 32, false, 0.2f},
      {"wide", {70, 13}, {70, 13}, 2, 1, 128, true, 0.1f, true},
      {"long", {200, 129}, {257, 131}, 1, 1, 64},
      {"long_causal", {300}, {300}, 1, 1, 64, true, 0.0f, true},
      {"long_wide", {150}, {140}, 1, 1, 128},
      {"odd_head", {9, 18}, {21, 6}, 2, 1, 33, false, 0.1f},
      {"head_256", {17, 34}, {40, 3}, 1, 1, 256, true},
      {"head_16", {40}, {40}, 2, 2, 16, true, 0.5f, true},
      {"no_sequence", {}, {}, 1, 1, 64, false, 0.0f, false, 4, 3},
  };
  return all;
}

struct Case {
  Shape shape;
  DType dtype;
};
std::string name_of_case(const ::testing::TestParamInfo<Case>& i) {
  return std::string(i.param.shape.name) + "_" + name_of(i.param.dtype);
}
std::vector<Case> cases(std::vector<DType> types) {
  std::vector<Case> all;
  for (const Shape& s : shapes())
    for (DType t : types) all.push_back({s, t});
  return all;
}

// Each direction of every implementation that fits, the other direction by the first that fits.
void expect_all_right(const Problem& p, Device device) {
  const Context ctx{device, nullptr, nullptr, 0};
  int tried = 0;
  for (const auto& f : attention_forward_impls()) {
    if (f.device != device.kind || !f.fits(ctx, p.args.forward)) continue;
    SCOPED_TRACE(f.name);
    ++tried;
    const Result first = run(p, device, &f, nullptr), again = run(p, device, &f, nullptr);
    expect_right(p, first);
    EXPECT_EQ(std::memcmp(first.o.data(), again.o.data(), first.o.size() * 8), 0)
        << "differs run to run";
  }
  for (const auto& b : attention_backward_impls()) {
    if (b.device != device.kind || !b.fits(ctx, p.args)) continue;
    SCOPED_TRACE(b.name);
    ++tried;
    const Result first = run(p, device, nullptr, &b), again = run(p, device, nullptr, &b);
    expect_right(p, first);
    EXPECT_EQ(std::memcmp(first.d_input.data(), again.d_input.data(), first.d_input.size() * 8), 0)
        << "differs run to run";
  }
  EXPECT_GE(tried, 2);
}

class AttentionCpuTest : public ::testing::TestWithParam<Case> {};
TEST_P(AttentionCpuTest, MatchesReference) {
  expect_all_right(Problem(GetParam().shape, GetParam().dtype), Device{});
}
INSTANTIATE_TEST_SUITE_P(Shapes, AttentionCpuTest,
                         ::testing::ValuesIn(cases({DType::f32, DType::f64})), name_of_case);

class AttentionCudaTest : public ::testing::TestWithParam<Case> {};
TEST_P(AttentionCudaTest, MatchesReference) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU";
  expect_all_right(Problem(GetParam().shape, GetParam().dtype), Device{DeviceKind::cuda, 0});
}
INSTANTIATE_TEST_SUITE_P(Shapes, AttentionCudaTest,
                         ::testing::ValuesIn(cases({DType::f32, DType::bf16, DType::f16})),
                         name_of_case);

// The derivative of sum(o * d_o) by each input, with the mask of the dropout held fixed.
TEST(Attention, GradientEqualsCentralDifferences) {
  Problem p({"gradient", {3, 5}, {4, 5}, 2, 1, 6, false, 0.25f}, DType::f64);
  for (const bool causal : {false, true}) {
    p.args.forward.causal = causal;
    const Result r = run(p, Device{}, nullptr, nullptr);
    const auto loss = [&] {
      const Result x = run(p, Device{}, nullptr, nullptr);
      double sum = 0;
      for (int64_t i = 0; i < p.args.forward.q_rows; ++i)
        for (int64_t c = 0; c < 12; ++c)
          sum += x.o[i * p.args.forward.o_stride + c] * p.d_o[i * p.args.forward.o_stride + c];
      return sum;
    };
    for (int64_t i = 0; i < p.input_size; i += 5) {
      if (std::isnan(r.d_input[i])) continue;  // a gap between rows
      constexpr double kStep = 1e-5;           // error: step^2 (1e-10) and epsilon / step (2e-11)
      const double keep = p.input[i];
      p.input[i] = keep + kStep;
      const double up = loss();
      p.input[i] = keep - kStep;
      const double down = loss();
      p.input[i] = keep;
      EXPECT_NEAR(r.d_input[i], (up - down) / (2 * kStep), 2e-9) << "element " << i;
    }
  }
}

TEST(Attention, VectorExpIsWithinTwoUlp) {
  using Kernels = AttentionCpu<16, float>;
  for (float x = -87.33f; x < 2.0f; x += 0.00037f) {
    const Kernels::Vec v = Kernels::Vec{} + x, y = Kernels::exp_of(v);
    const double want = std::exp(static_cast<double>(x));
    ASSERT_NEAR(y[0], want, 2 * 0x1p-23 * want) << x;
  }
  const Kernels::Vec low = Kernels::Vec{} - 100.0f;
  const Kernels::Vec at_low = Kernels::exp_of(low);
  const Kernels::Vec at_infinity = Kernels::exp_of(low - std::numeric_limits<float>::infinity());
  EXPECT_EQ(at_low[0], 0.0f);
  EXPECT_EQ(at_infinity[0], 0.0f);
}

template <class F>
std::string error_of(const F& f) {
  try {
    f();
  } catch (const Error& e) {
    return e.what();
  }
  return "no error";
}

TEST(Attention, RefusesBadArguments) {
  const Problem p({"ok", {3}, {3}, 4, 2, 8}, DType::f32);
  const auto message = [&](auto change) {
    Values memory(4096);
    std::vector<int32_t> cu = {0, 3};
    char* m = reinterpret_cast<char*>(memory.data());
    AttentionBackwardArgs b = p.at(4, m, m, m, m, m, m);
    b.forward.cu_q = b.forward.cu_k = cu.data();
    change(b, cu);
    return error_of([&] { attention_backward(Context{}, b); });
  };
  using B = AttentionBackwardArgs;
  using Cu = std::vector<int32_t>;
  const auto expect = [&](auto change, const char* part) {
    const std::string text = message(change);
    EXPECT_NE(text.find(part), std::string::npos) << text;
  };
  expect([](B& b, Cu&) { b.forward.kv_heads = 3; }, "heads 4, kv_heads 3");
  expect([](B& b, Cu&) { b.forward.q_stride = 31; }, "q_stride is 31");
  expect([](B& b, Cu&) { b.d_v_stride = 15; }, "d_v_stride is 15");
  expect([](B& b, Cu&) { b.forward.dropout = 1.0f; }, "dropout is 1");
  expect([](B& b, Cu&) { b.forward.dropout = 0.5f; }, "rng.state is null");
  expect([](B& b, Cu&) { b.forward.scale = 0.0f; }, "scale is 0");
  expect([](B& b, Cu&) { b.forward.dtype = DType::i32; }, "dtype is i32");
  expect([](B& b, Cu&) { b.forward.max_q = -1; }, "max_q -1");
  expect([](B& b, Cu&) { b.forward.o = nullptr; }, "q, o or lse is null");
  expect([](B& b, Cu&) { b.d_k = nullptr; }, "d_k or d_v is null");
  expect([](B&, Cu& cu) { cu[1] = 4; }, "cu_q[0..1] is 0..4");
  expect([](B& b, Cu&) { b.forward.dtype = DType::bf16; }, "dtype is neither f32 nor f64");
}

TEST(Attention, SaysWhyItDoesNotFit) {
  const Device cuda{DeviceKind::cuda, 0};
  const auto reason = [&](const char* impl, DType t, int64_t head_size, int64_t stride_change) {
    Problem p({"fit", {3}, {3}, 1, 1, head_size}, t);
    p.args.forward.q_stride += stride_change;
    p.args.d_q_stride += stride_change;
    for (const auto& f : attention_forward_impls())
      if (std::string(f.name) == impl)
        return f.fits(Context{cuda, nullptr, nullptr, 0}, p.args.forward).reason;
    return "not built";
  };
#if SATURATE_WITH_CUDA
  EXPECT_STREQ(reason("attention_forward_mma_cuda", DType::f32, 64, 0),
               "dtype is neither bf16 nor f16 (tensor-core operands)");
  EXPECT_STREQ(reason("attention_forward_mma_cuda", DType::bf16, 48, 0),
               "head size is none of 32, 64, 128");
  EXPECT_STREQ(reason("attention_forward_mma_cuda", DType::bf16, 64, 4),
               "q, k, v or o is not aligned to 16 bytes, or its stride is no multiple of 8");
  if (cuda_device_count() == 0) {
    EXPECT_STREQ(reason("attention_forward_mma_cuda", DType::bf16, 64, 0),
                 "the GPU is older than compute capability 8.0");
  }
  EXPECT_STREQ(reason("attention_forward_plain_cuda", DType::f64, 64, 0),
               "dtype is f64, which only the CPU computes");
  EXPECT_STREQ(reason("attention_forward_plain_cuda", DType::f32, 257, 0),
               "head size is above 256 (shared memory of one tile)");
#endif
  EXPECT_STREQ(reason("attention_forward_cpu", DType::bf16, 64, 0), "dtype is neither f32 nor f64");
}

}  // namespace
}  // namespace saturate::kernels
