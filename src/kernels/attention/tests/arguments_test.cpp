// SPDX-License-Identifier: Apache-2.0
// Arguments that attention refuses, and the reasons why an implementation does not fit.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "kernels/attention/hopper/backward.h"
#include "kernels/attention/tune/table.h"
#include "kernels/attention/wide/wide.h"
#include "kernels/testing/attention_expect.h"

namespace saturate::kernels {
namespace {

template <class F>
std::string error_of(const F& f) {
  try {
    f();
  } catch (const Error& e) {
    return e.what();
  }
  return "no error";
}

// Message of attention_backward for a small problem that `change` has spoilt.
template <class Change>
std::string message(const Change& change) {
  FeatureSet features;
  features.bias = BiasShape::full, features.block_size = 2;
  features.alibi = features.sinks = true;
  const Problem p({"ok", {3}, {3}, 4, 2, 8, false, 0.0f, false, 0, 0, features}, DType::f32);
  Values memory(4096);
  std::vector<int32_t> cu = {0, 3};
  const std::vector<uint32_t> mask(64, ~0u);
  char* m = reinterpret_cast<char*>(memory.data());
  AttentionBackwardArgs b =
      p.at(4, 4, {m, m, m, m, m, m, m, m, m, m, mask.data(), cu.data(), cu.data(), p.rng_state});
  change(b, cu);
  return error_of([&] { attention_backward(Context{}, b); });
}

using B = AttentionBackwardArgs;
using Cu = std::vector<int32_t>;
template <class Change>
void expect_error(const Change& change, const char* part) {
  const std::string text = message(change);
  EXPECT_NE(text.find(part), std::string::npos) << text;
}

TEST(Attention, AcceptsTheProblemThatTheOtherTestsSpoil) {
  EXPECT_EQ(message([](B&, Cu&) {}), "no error");
}

TEST(Attention, RefusesBadArguments) {
  expect_error([](B& b, Cu&) { b.forward.kv_heads = 3; }, "heads 4, kv_heads 3");
  expect_error([](B& b, Cu&) { b.forward.q_stride = 31; }, "q_stride is 31");
  expect_error([](B& b, Cu&) { b.d_v_stride = 15; }, "d_v_stride is 15");
  expect_error([](B& b, Cu&) { b.forward.dropout = 1.0f; }, "dropout is 1");
  expect_error([](B& b, Cu&) { b.forward.dropout = 0.5f, b.forward.rng.state = nullptr; },
               "rng.state is null");
  expect_error([](B& b, Cu&) { b.forward.scale = 0.0f; }, "scale is 0");
  expect_error([](B& b, Cu&) { b.forward.dtype = DType::i32; }, "dtype is i32");
  expect_error([](B& b, Cu&) { b.forward.max_q = -1; }, "max_q -1");
  expect_error([](B& b, Cu&) { b.forward.o = nullptr; }, "q, o or lse is null");
  expect_error([](B& b, Cu&) { b.d_k = nullptr; }, "d_k or d_v is null");
  expect_error([](B&, Cu& cu) { cu[1] = 4; }, "cu_q[0..1] is 0..4");
  expect_error([](B& b, Cu&) { b.forward.dtype = DType::bf16; }, "dtype is neither f32 nor f64");
}

TEST(Attention, RefusesBadFeatureArguments) {
  expect_error([](B& b, Cu&) { b.forward.window_left = -1; },
               "window_left is -1 and window_right 9223372036854775807: neither may be negative; "
               "kUnlimitedWindow removes a bound");
  expect_error([](B& b, Cu&) { b.forward.window_right = -7; }, "window_right -7");
  expect_error([](B& b, Cu&) { b.forward.soft_cap = -2.0f; },
               "soft_cap is -2; pass a positive finite cap, or 0 for none");
  expect_error([](B& b, Cu&) { b.forward.soft_cap = INFINITY; }, "soft_cap is inf");
  expect_error([](B& b, Cu&) { b.forward.rotary_base = -1.0f; },
               "rotary_base is -1; pass a positive finite base, or 0 for none");
  expect_error([](B& b, Cu&) { b.forward.rotary_base = 10.0f, b.forward.head_size = 7; },
               "head_size is 7 with rotary_base 10");
  expect_error([](B& b, Cu&) { b.forward.v_head_size = -8; }, "v_head_size is -8");
  expect_error([](B& b, Cu&) { b.forward.v_head_size = 80; },
               "o_stride is 40, but a row holds 4 heads of 80 elements: pass at least 320");
  expect_error([](B& b, Cu&) { b.forward.bias_dtype = DType::bf16; },
               "bias_dtype is bf16, but dtype is f32: pass a bias in f32");
  expect_error([](B& b, Cu&) { b.forward.bias_head_stride = -1; }, "bias_head_stride -1");
  expect_error([](B& b, Cu&) { b.forward.bias_row_stride = 2; },
               "bias_row_stride is 2, but a row holds max_k = 3 keys: pass at least that, or 0");
  expect_error([](B& b, Cu&) { b.d_bias_row_stride = 1; }, "d_bias_row_stride is 1");
  expect_error(
      [](B& b, Cu&) { b.forward.block_size = 0; },
      "block_size is 0 and block_mask is set: pass both (a size of at least 1) or neither");
  expect_error([](B& b, Cu&) { b.forward.block_mask = nullptr; },
               "block_size is 2 and block_mask is null");
  expect_error([](B& b, Cu&) { b.forward.block_size = -2; }, "block_size is -2");
  expect_error([](B& b, Cu&) { b.forward.block_mask_head_stride = -1; },
               "block_mask_head_stride -1");
  expect_error([](B& b, Cu&) { b.forward.bias = nullptr; },
               "d_bias is set but the forward pass had no bias; pass a null d_bias");
  expect_error([](B& b, Cu&) { b.forward.alibi_slopes = nullptr; },
               "d_alibi_slopes is set but alibi_slopes is null");
  expect_error([](B& b, Cu&) { b.forward.sinks = nullptr; }, "d_sinks is set but sinks is null");
}

// Of a Hopper GPU that is not here: planning follows no pointer and asks no driver.
TEST(Attention, PlansTheWorkspaceOfWhatRuns) {
  AttentionArgs a = Problem({"long", {600, 600}, {600, 600}, 4, 4, 64}, DType::bf16).args.forward;
  // Sums of d_q in blocks of 128 queries: 1200 / 128 + 2 = 11 of each head, and their counters.
  const int64_t wanted = attention_backward_hopper_workspace(a);
  EXPECT_GE(wanted, 4 * 11 * (128 * 64 * 4 + 8) + 4);
  const Capability hopper{
      .major = 9, .multiprocessors = 132, .shared_bytes = 232448, .tensor_maps = true};
  Context ctx{{DeviceKind::cuda, 0}, nullptr, nullptr, 0, &hopper};
  AttentionTable measured;
  const auto bytes = [&](int64_t most) {
    AttentionBackwardArgs b{.forward = a};
    b.workspace_bytes = most;
    return plan_attention(ctx, b, &measured).workspace_bytes;
  };
#if SATURATE_WITH_CUDA
  EXPECT_EQ(bytes(kAnyWorkspace), wanted);
  EXPECT_EQ(bytes(wanted), wanted);
  EXPECT_EQ(bytes(wanted - 1), 0);  // another kernel, which needs none
  a.soft_cap = 30.0f, a.window_left = 100;
  EXPECT_EQ(bytes(kAnyWorkspace), wanted);
  a.soft_cap = 0.0f, a.rotary_base = 100.0f;
  EXPECT_EQ(bytes(kAnyWorkspace), 0);
  a.rotary_base = 0.0f, a.dropout = 0.1f;  // with a window
  EXPECT_EQ(bytes(kAnyWorkspace), 0);
  a.window_left = kUnlimitedWindow;
  EXPECT_EQ(bytes(kAnyWorkspace), wanted);
  a.dropout = 0.0f, a.sequences = 16;  // 75 rows each
  EXPECT_EQ(bytes(kAnyWorkspace), 0);
  a.sequences = 2;
  // What was measured overrules both ways.
  measured.set(attention_key(a, AttentionPass::backward), {"attention_backward_mma_cuda", 1, 1});
  EXPECT_EQ(bytes(kAnyWorkspace), 0);
  a.sequences = 16;
  measured.set(attention_key(a, AttentionPass::backward), {"attention_backward_hopper_cuda", 1, 1});
  EXPECT_EQ(bytes(kAnyWorkspace), attention_backward_hopper_workspace(a));
#endif
  a.sequences = 2, a.dtype = DType::f32;
  ctx = {};
  EXPECT_EQ(bytes(kAnyWorkspace), 0);
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
  constexpr const char* kFeatures = "attention_forward_features_cuda";
  EXPECT_STREQ(reason(kFeatures, DType::f32, 64, 0),
               "dtype is neither bf16 nor f16 (tensor-core operands)");
  EXPECT_STREQ(reason(kFeatures, DType::f16, 60, 0), "a head size is no multiple of 8");
  EXPECT_STREQ(reason(kFeatures, DType::f16, 264, 0), "a head size is above 256");
  EXPECT_STREQ(reason(kFeatures, DType::f16, 256, 4),
               "q, k, v or o is not aligned to 16 bytes, or its stride is no multiple of 8");
  if (cuda_device_count() == 0) {
    EXPECT_STREQ(reason(kFeatures, DType::bf16, 80, 0),
                 "the GPU is older than compute capability 8.0");
    EXPECT_STREQ(reason("attention_forward_mma_cuda", DType::bf16, 64, 0),
                 "the GPU is older than compute capability 8.0");
  }
  const auto backward_reason = [&](const char* impl, DType t, int64_t head_size, float dropout,
                                   bool workspace) {
    AttentionBackwardArgs b = Problem({"fit", {3}, {3}, 1, 1, head_size}, t).args;
    b.forward.dropout = dropout;
    b.workspace = workspace ? &b : nullptr;
    b.workspace_bytes = workspace ? attention_backward_hopper_workspace(b.forward) : 0;
    for (const auto& f : attention_backward_impls())
      if (std::string(f.name) == impl) return f.fits(Context{cuda, nullptr, nullptr, 0}, b).reason;
    return "not built";
  };
  constexpr const char* kHopper = "attention_backward_hopper_cuda";
  EXPECT_STREQ(backward_reason(kHopper, DType::f32, 64, 0.0f, true),
               "dtype is neither bf16 nor f16 (tensor-core operands)");
  EXPECT_STREQ(backward_reason(kHopper, DType::bf16, 32, 0.0f, true),
               "head size is neither 64 nor 128");
  EXPECT_STREQ(backward_reason(kHopper, DType::bf16, 64, 0.99f, true), "dropout is above 31/32");
  const auto feature_reason = [&](auto set) {
    AttentionBackwardArgs b = Problem({"fit", {3}, {3}, 1, 1, 64}, DType::bf16).with_any_pointers();
    set(b);
    return attention_backward_hopper_fits(Context{cuda, nullptr, nullptr, 0}, b).reason;
  };
  EXPECT_STREQ(feature_reason([](auto& b) { b.forward.dropout = 0.1f, b.forward.soft_cap = 1; }),
               "dropout together with a feature");
  EXPECT_STREQ(feature_reason([](auto& b) { b.forward.rotary_base = 100.0f; }),
               "no fused rotary positions");
  EXPECT_STREQ(feature_reason([](auto& b) { b.forward.alibi_slopes = &b, b.forward.soft_cap = 1; }),
               "a soft cap and ALiBi slopes together");
  EXPECT_STREQ(backward_reason(kHopper, DType::bf16, 64, 0.0f, false),
               "the workspace is too small for the fp32 sums of d_q");
  EXPECT_STREQ(backward_reason("attention_backward_short_cuda", DType::bf16, 128, 0.0f, false),
               "head size is neither 32 nor 64");
  const auto wide_reason = [&](DType t, int64_t head_size, int64_t value, float dropout) {
    Problem p({"fit", {100}, {100}, 1, 1, head_size}, t);
    p.args.forward.v_head_size = value, p.args.forward.dropout = dropout;
    return attention_forward_wide_fits(Context{cuda, nullptr, nullptr, 0}, p.args.forward).reason;
  };
  EXPECT_STREQ(wide_reason(DType::f32, 256, 0, 0.0f), "dtype is neither bf16 nor f16");
  EXPECT_STREQ(wide_reason(DType::bf16, 192, 0, 0.0f),
               "head sizes are neither 256 nor 192 with values of 128");
  EXPECT_STREQ(wide_reason(DType::bf16, 256, 128, 0.0f),
               "head sizes are neither 256 nor 192 with values of 128");
  EXPECT_STREQ(wide_reason(DType::f16, 192, 128, 0.1f), "dropout is not built for this kernel");
  AttentionBackwardArgs uneven = Problem({"fit", {3, 129}, {3, 5}, 1, 1, 64}, DType::bf16).args;
  uneven.forward.q_rows = uneven.forward.k_rows = 100;  // 50 in the mean
  for (const auto& f : attention_backward_impls())
    if (std::string(f.name) == "attention_backward_short_cuda") {
      EXPECT_STREQ(f.fits(Context{cuda, nullptr, nullptr, 0}, uneven).reason,
                   "a sequence may be longer than 128 rows");
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
