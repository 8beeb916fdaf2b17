// SPDX-License-Identifier: Apache-2.0
// On a GPU: rows further apart than 32 bits can count, and many repeats of the backward pass.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "kernels/testing/attention_expect.h"
#include "runtime/device.h"

namespace saturate::kernels {
namespace {

constexpr Device kGpu{DeviceKind::cuda, 0};
constexpr int64_t kStride = (int64_t{1} << 31) + 64;  // elements between rows

// Where a row's q, k and v, o, d_o and gradients begin within the stride.
constexpr int64_t kOutput = 4096, kOutputGradient = 8192, kInputGradient = 12288;

// Rows of a packed problem, spread over one buffer with kStride between them.
class SpreadRows {
 public:
  SpreadRows(const Problem& p, const DeviceArrays& m)
      : p_(p),
        m_(m),
        size_(size_of(p.dtype)),
        rows_(p.args.forward.q_rows),
        buffer_(kGpu, static_cast<size_t>((rows_ - 1) * kStride + 16384) * size_) {}

  char* at(int64_t row, int64_t column) const {
    return buffer_.as<char>() + (row * kStride + column) * static_cast<int64_t>(size_);
  }
  void put(const Values& v, int64_t stride, int64_t column) const {
    for (int64_t r = 0; r < rows_; ++r) {
      std::vector<char> host(static_cast<size_t>(stride) * size_);
      for (int64_t i = 0; i < stride; ++i)
        encode(v[r * stride + i], p_.dtype, host.data() + i * static_cast<int64_t>(size_));
      copy_to_device(m_.stream, at(r, column), host.data(), host.size());
      m_.stream.synchronize();
    }
  }
  // As Result holds them: `width` of each `stride` elements, NaN between and after.
  Values get(int64_t stride, int64_t width, int64_t column, int64_t total) const {
    Values v(static_cast<size_t>(total + kGuard), std::nan(""));
    for (int64_t r = 0; r < rows_; ++r) {
      std::vector<char> host(static_cast<size_t>(width) * size_);
      copy_to_host(m_.stream, host.data(), at(r, column), host.size());
      m_.stream.synchronize();
      for (int64_t i = 0; i < width; ++i)
        v[r * stride + i] = decode(host.data() + i * static_cast<int64_t>(size_), p_.dtype);
    }
    return v;
  }

 private:
  const Problem& p_;
  const DeviceArrays& m_;
  size_t size_;
  int64_t rows_;
  Buffer buffer_;
};

// One implementation of each direction on spread rows.
Result run_spread(const Problem& p, const Impl<AttentionArgs>& forward,
                  const Impl<AttentionBackwardArgs>& backward) {
  const DeviceArrays m(kGpu);
  const AttentionArgs& a = p.args.forward;
  const SpreadRows rows(p, m);
  rows.put(p.input, a.q_stride, 0);
  rows.put(p.d_o, a.o_stride, kOutputGradient);
  const Buffer lse = m.upload({}, DType::f32, p.lse_size);
  const Buffer delta = m.upload({}, DType::f32, p.lse_size);
  const Buffer cu = m.raw(p.cu_q.data(), p.cu_q.size() * 4);
  AttentionBackwardArgs b =
      p.at(size_of(p.dtype), 4,
           {rows.at(0, 0), rows.at(0, kOutput), lse.as<char>(), rows.at(0, kOutputGradient),
            rows.at(0, kInputGradient), delta.as<char>(), nullptr, nullptr, nullptr, nullptr,
            nullptr, cu.as<int32_t>(), cu.as<int32_t>(), nullptr});
  b.forward.q_stride = b.forward.k_stride = b.forward.v_stride = b.forward.o_stride = kStride;
  b.d_q_stride = b.d_k_stride = b.d_v_stride = kStride;
  const Context ctx{kGpu, m.stream.native(), nullptr, 0};
  forward.launch(ctx, b.forward);
  backward.launch(ctx, b);
  m.stream.synchronize();
  return {rows.get(a.o_stride, a.o_stride - 8, kOutput, p.o_size),
          m.download(lse, DType::f32, p.lse_size),
          rows.get(a.q_stride, a.q_stride, kInputGradient, p.input_size),
          Values(kGuard, std::nan("")), Values(p.per_head.size() + kGuard, std::nan(""))};
}

class AttentionLarge : public ::testing::TestWithParam<DType> {};

TEST_P(AttentionLarge, RowsFurtherApartThan32Bits) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU";
  const Problem p({"spread", {3}, {3}, 2, 2, 64, true, 0.0f, true}, GetParam());
  const size_t bytes = static_cast<size_t>(2 * kStride + 16384) * size_of(GetParam());
  if (device_info(kGpu).free_bytes < bytes + (size_t{1} << 30))
    GTEST_SKIP() << "needs " << bytes << " bytes of GPU memory";
  AttentionBackwardArgs any = p.with_any_pointers();
  any.forward.q_stride = any.forward.k_stride = any.forward.v_stride = kStride;
  any.forward.o_stride = any.d_q_stride = any.d_k_stride = any.d_v_stride = kStride;
  const Context ctx{kGpu, nullptr, nullptr, 0};
  int tried = 0;
  for (const auto& f : attention_forward_impls())
    for (const auto& b : attention_backward_impls()) {
      if (f.device != kGpu.kind || !f.fits(ctx, any.forward)) continue;
      if (b.device != kGpu.kind || !b.fits(ctx, any)) continue;
      SCOPED_TRACE(std::string(f.name) + " and " + b.name);
      expect_right(p, run_spread(p, f, b));
      ++tried;
    }
  EXPECT_GE(tried, 1);
}

TEST_P(AttentionLarge, ThousandBackwardPassesAreEqual) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU";
  Shape s{"repeats", {130, 7, 65}, {130, 7, 65}, 4, 2, 64, true, 0.1f};
  for (const bool features : {false, true}) {
    if (features) {
      s.features.bias = BiasShape::heads, s.features.alibi = s.features.sinks = true;
      s.features.rotary_base = 10000.0f, s.features.soft_cap = 5.0f;
    }
    const Problem p(s, GetParam());
    const Result first = run(p, kGpu, nullptr, nullptr);
    for (int n = 1; n < (features ? 100 : 1000); ++n) {
      const Result r = run(p, kGpu, nullptr, nullptr);
      ASSERT_TRUE(same_bits(r.d_input, first.d_input) && same_bits(r.d_bias, first.d_bias) &&
                  same_bits(r.d_per_head, first.d_per_head))
          << "repeat " << n << (features ? " with features" : "");
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Types, AttentionLarge,
                         ::testing::Values(DType::f32, DType::bf16, DType::f16),
                         [](const auto& i) { return std::string(name_of(i.param)); });

}  // namespace
}  // namespace saturate::kernels
