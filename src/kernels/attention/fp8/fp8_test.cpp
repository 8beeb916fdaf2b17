// SPDX-License-Identifier: Apache-2.0
#include "kernels/attention/fp8/fp8.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>

#include "kernels/attention/attention_run.h"
#include "runtime/device.h"

namespace saturate::kernels {
namespace {

double decoded(uint8_t bits) {
  const int exponent = bits >> 3 & 15, mantissa = bits & 7;
  const double size =
      exponent > 0 ? std::ldexp(8 + mantissa, exponent - 10) : std::ldexp(mantissa, -9);
  return bits & 0x80 ? -size : size;
}

struct Fp8Shape {
  const char* name;
  std::vector<int32_t> q_lengths, k_lengths;
  int64_t heads, kv_heads, head_size;
  bool causal;
  int64_t tail;  // rows after the last sequence
};

// Rows of heads of e4m3 up to 3.75 with gaps after each row, and what they stand for.
struct Operand {
  std::vector<uint8_t> bits;
  Values values, sizes;
  std::vector<float> scales;
  int64_t stride;

  Operand(int64_t rows, int64_t heads, int64_t head_size, float first_scale, uint64_t stream)
      : stride(heads * head_size + 16) {
    for (int64_t h = 0; h < heads; ++h)
      scales.push_back(first_scale + 0.25f * static_cast<float>(h));
    for (int64_t i = 0; i < rows * stride; ++i) {
      const uint32_t dice = random_block(5, stream, 0, static_cast<uint64_t>(i)).x[0];
      const uint32_t magnitude = dice % 0x48;
      bits.push_back(static_cast<uint8_t>(magnitude | (dice >> 24 & 0x80)));
      const int64_t head = std::min(i % stride / head_size, heads - 1);
      values.push_back(decoded(bits.back()) * static_cast<double>(scales[head]));
      sizes.push_back(std::fabs(values.back()));
    }
  }
};

// Arguments of both kinds: for the truth host doubles, for the GPU what was uploaded.
AttentionArgs arguments(const Fp8Shape& s, const std::vector<int32_t>& cu_q,
                        const std::vector<int32_t>& cu_k) {
  AttentionArgs a;
  a.cu_q = cu_q.data(), a.cu_k = cu_k.data();
  a.sequences = static_cast<int64_t>(s.q_lengths.size());
  a.heads = s.heads, a.kv_heads = s.kv_heads, a.head_size = s.head_size;
  a.q_rows = cu_q.back() + s.tail, a.k_rows = cu_k.back() + s.tail;
  for (int32_t n : s.q_lengths) a.max_q = std::max<int64_t>(a.max_q, n);
  for (int32_t n : s.k_lengths) a.max_k = std::max<int64_t>(a.max_k, n);
  a.q_stride = s.heads * s.head_size + 16, a.k_stride = s.kv_heads * s.head_size + 16;
  a.v_stride = a.k_stride, a.o_stride = s.heads * s.head_size + 8;
  a.causal = s.causal;
  a.scale = static_cast<float>(1 / std::sqrt(static_cast<double>(s.head_size)));
  return a;
}

Values reference(AttentionArgs a, const Operand& q, const Operand& k, const Values& v,
                 Values& lse) {
  Values o(static_cast<size_t>(a.q_rows * a.o_stride), std::nan(""));
  lse.assign(static_cast<size_t>(a.heads * a.q_rows), std::nan(""));
  a.q = q.values.data(), a.k = k.values.data(), a.v = v.data();
  a.o = o.data(), a.lse = lse.data(), a.dtype = DType::f64;
  attention_forward_reference(a);
  return o;
}

void expect_right(const Fp8Shape& s) {
  SCOPED_TRACE(s.name);
  std::vector<int32_t> cu_q{0}, cu_k{0};
  for (int32_t n : s.q_lengths) cu_q.push_back(cu_q.back() + n);
  for (int32_t n : s.k_lengths) cu_k.push_back(cu_k.back() + n);
  const AttentionArgs host = arguments(s, cu_q, cu_k);
  const Operand q(host.q_rows, s.heads, s.head_size, 0.5f, 1);
  const Operand k(host.k_rows, s.kv_heads, s.head_size, 0.75f, 2);
  const Operand v(host.k_rows, s.kv_heads, s.head_size, 1.0f, 3);
  Values want_lse, ignored;
  const Values want = reference(host, q, k, v.values, want_lse);
  const Values spread = reference(host, q, k, v.sizes, ignored);  // sum_j p_j |v_j|
  const double largest = *std::max_element(v.sizes.begin(), v.sizes.end());

  const DeviceArrays m({DeviceKind::cuda, 0});
  const auto upload = [&](const auto& x) { return m.raw(x.data(), x.size() * sizeof x[0]); };
  const Buffer q_bits = upload(q.bits), k_bits = upload(k.bits), v_bits = upload(v.bits);
  const Buffer q_scales = upload(q.scales), k_scales = upload(k.scales);
  const Buffer v_scales = upload(v.scales), cu_q_there = upload(cu_q), cu_k_there = upload(cu_k);
  const auto o_size = static_cast<int64_t>(want.size());
  const auto lse_size = static_cast<int64_t>(want_lse.size());
  const Buffer o = m.upload({}, DType::bf16, o_size), lse = m.upload({}, DType::f32, lse_size);
  AttentionFp8Args args{host, q_scales.as<float>(), k_scales.as<float>(), v_scales.as<float>()};
  AttentionArgs& a = args.attention;
  a.q = q_bits.data(), a.k = k_bits.data(), a.v = v_bits.data(), a.o = o.data();
  a.lse = lse.data(), a.cu_q = cu_q_there.as<int32_t>(), a.cu_k = cu_k_there.as<int32_t>();
  a.dtype = DType::bf16;
  const Context ctx{{DeviceKind::cuda, 0}, m.stream.native(), nullptr, 0};
  attention_forward_fp8(ctx, args);
  const Values got = m.download(o, DType::bf16, o_size);
  const Values got_lse = m.download(lse, DType::f32, lse_size);

  const int64_t width = s.heads * s.head_size;
  for (int64_t i = 0; i < o_size + kGuard; ++i) {
    if (i >= o_size || i % a.o_stride >= width) {
      ASSERT_TRUE(std::isnan(got[i])) << "element " << i << " was written";
      continue;
    }
    // fp8.h's bound with every e_j at most 1, and a thousandth of p for the scores.
    const double bound = spread[i] * (0x1p-4 + 1e-3) +
                         0x1p-18 * largest * static_cast<double>(a.max_k) +
                         0x1p-8 * std::fabs(want[i]);
    ASSERT_NEAR(got[i], want[i], bound) << "row " << i / a.o_stride << " at " << i % a.o_stride;
  }
  for (int64_t i = 0; i < lse_size; ++i) {
    if (std::isinf(want_lse[i])) {
      ASSERT_EQ(got_lse[i], want_lse[i]) << i;
    } else {
      ASSERT_NEAR(got_lse[i], want_lse[i], 1e-4 * (1 + std::fabs(want_lse[i]))) << i;
    }
  }
  attention_forward_fp8(ctx, args);
  const Values again = m.download(o, DType::bf16, o_size);
  EXPECT_EQ(std::memcmp(again.data(), got.data(), static_cast<size_t>(o_size) * sizeof again[0]), 0)
      << "differs run to run";
}

TEST(AttentionFp8, MatchesReference) {
  if (cuda_compute_major(0) < 9) GTEST_SKIP() << "no GPU of compute capability 9.0";
  for (const Fp8Shape& s :
       std::vector<Fp8Shape>{{"one_tile", {64}, {64}, 1, 1, 64, false, 0},
                             {"lengths", {5, 70, 0, 1, 9}, {40, 70, 9, 1, 0}, 2, 1, 64, false, 3},
                             {"causal", {130, 64}, {130, 64}, 2, 2, 64, true, 1},
                             {"cross_causal", {20, 170}, {90, 70}, 2, 1, 128, true, 2},
                             {"wide", {33, 80}, {129, 20}, 4, 2, 128, false, 2},
                             {"long", {300}, {1000}, 2, 2, 128, false, 0},
                             {"no_sequence", {}, {}, 1, 1, 64, false, 4}})
    expect_right(s);
}

TEST(AttentionFp8, RefusesWhatItDoesNotCompute) {
  const Fp8Shape s{"", {3}, {3}, 1, 1, 64, false, 0};
  const std::vector<int32_t> cu{0, 3};
  AttentionFp8Args good{arguments(s, cu, cu)};
  good.attention.dtype = DType::bf16;
  const auto reason = [](const AttentionFp8Args& x) {
    return std::string(attention_forward_fp8_fits(Context{}, x).reason);
  };
  EXPECT_EQ(reason(good), "the CPU does not compute it");
  const auto changed = [&](auto change) {
    AttentionFp8Args x = good;
    change(x.attention);
    return reason(x);
  };
  using Args = AttentionArgs&;
  EXPECT_EQ(changed([](Args a) { a.dtype = DType::f32; }),
            "dtype, which is that of o, is not bf16");
  EXPECT_EQ(changed([](Args a) { a.head_size = 96; }), "head size is neither 64 nor 128");
  EXPECT_EQ(changed([](Args a) { a.dropout = 0.1f; }), "dropout");
  EXPECT_EQ(changed([](Args a) { a.k_stride = 72; }),
            "q, k or v is not aligned to 16 bytes, or its stride is no multiple of 16");
  EXPECT_EQ(changed([](Args a) { a.o_stride = 65; }),
            "o is not aligned to 4 bytes, or its stride is odd");
}

}  // namespace
}  // namespace saturate::kernels
