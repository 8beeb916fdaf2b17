// SPDX-License-Identifier: Apache-2.0
// Products in types that the fast kernels do not take, and buffers that are copied to change a part
// of them.
#include <gtest/gtest.h>

#include "observe/analyse/names.h"
#include "observe/testing/tell.h"

namespace saturate::observe {
namespace {

using testing::expect_sound;
using testing::find;
using testing::Simulator;
using testing::Step;
using testing::tell;
using testing::Told;

constexpr const char* kAttention32 =
    "fmha_cutlassF_f32_aligned_64x128_rf_sm80(PyTorchMemEffAttention::AttentionKernel";

TEST(ProductTypes, AreInTheNames) {
  EXPECT_TRUE(is_float32_attention(kAttention32));
  EXPECT_FALSE(is_float32_attention("fmha_cutlassF_bf16_aligned_64x128_rf_sm80"));
  EXPECT_FALSE(is_16_bit_product(kAttention32));
  for (const char* name : {"nvjet_sm90_tst_128x256_64x4_2x1_v_bz_coopA_NTN", "nvjet_hsh_128x64_TNN",
                           "sm80_xmma_gemm_bf16bf16_bf16f32", "ampere_fp16_s16816gemm_fp16_128x64",
                           "flash_fwd_kernel", "fmha_cutlassF_bf16_aligned_64x128_rf_sm80"})
    EXPECT_TRUE(is_16_bit_product(name)) << name;
  for (const char* name : {"nvjet_sm90_sss_128x256_64x4_2x1_v_bz_coopA_NTN", "nvjet_sm90",
                           "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n", "nvjet_sm90_qqh_128x128_TNN",
                           "sm80_xmma_fprop_implicit_gemm_tf32f32_tf32f32"})
    EXPECT_FALSE(is_16_bit_product(name)) << name;
  EXPECT_TRUE(is_integer_product("void _tensordot_core_int_kernel<int>(int, int, int, int)"));
  EXPECT_TRUE(is_partial_update("loop_dynamic_update_slice_fusion"));
}

Step layers_with(const char* attention, int64_t ns, const char* product) {
  return [=](Simulator& s, int) {
    for (int i = 0; i < 8; ++i) {
      s.kernel(product, 600'000);
      s.kernel(attention, ns);
    }
  };
}

TEST(ProductTypes, AttentionInFloat32BesideProductsOf16BitsIsNamed) {
  constexpr const char* kHalf = "nvjet_sm90_tst_128x256_64x4_2x1_v_bz_coopA_NTN";
  const Told before = tell(layers_with(kAttention32, 900'000, kHalf));
  const Told after = tell(layers_with("flash_fwd_kernel", 130'000, kHalf));
  ASSERT_FALSE(before.fixes.worth.empty());
  EXPECT_EQ(before.fixes.worth[0].kind, FixKind::product_types);
  EXPECT_FALSE(before.fixes.worth[0].ceiling);
  EXPECT_EQ(before.verdict.id, "gpu_bound");
  expect_sound(before, FixKind::product_types, before.step_ns / after.step_ns);
  EXPECT_LT(find(before.fixes, FixKind::mixed)->speedup, 1.001) << "promised once";
  EXPECT_LT(find(after.fixes, FixKind::product_types)->speedup, 1.001);
}

// Where all is fp32, its attention is no exception.
TEST(ProductTypes, AttentionInFloat32AmongItsLikeIsNot) {
  const Told told = tell(layers_with(kAttention32, 900'000, "sm80_xmma_gemm_tf32f32_tf32f32"));
  EXPECT_LT(find(told.fixes, FixKind::product_types)->speedup, 1.001);
  // 16 bits change it along with the products (DiT sampled in fp32 gained 1.42x by autocast).
  const Told after = tell(layers_with("flash_fwd_kernel", 130'000, "sm90_xmma_gemm_bf16bf16_bf16"));
  const Told products = tell(layers_with(kAttention32, 900'000, "sm90_xmma_gemm_bf16bf16_bf16"));
  ASSERT_FALSE(told.fixes.worth.empty());
  EXPECT_EQ(told.fixes.worth[0].kind, FixKind::mixed);
  expect_sound(told, FixKind::mixed, told.step_ns / after.step_ns);
  EXPECT_NE(told.fixes.worth[0].evidence.find("attention in float32"), std::string::npos);
  EXPECT_GT(find(told.fixes, FixKind::mixed)->speedup, 1.03 * told.step_ns / products.step_ns);
}

TEST(ProductTypes, WholeNumbersAreNamed) {
  const auto program = [](const char* name, int64_t ns) {
    return [=](Simulator& s, int) {
      s.kernel(name, ns);
      s.kernel("nvjet_sm90_hsh_320x128_64x3_1x2_h_bz_coopB_NNT", 5'400'000);
    };
  };
  const Told before = tell(program("void _tensordot_core_int_kernel<int>", 6'250'000));
  const Told after = tell(program("sm80_xmma_gemm_f32f32_f32f32_f32_tn_n", 3'190'000));
  ASSERT_FALSE(before.fixes.worth.empty());
  EXPECT_EQ(before.fixes.worth[0].kind, FixKind::product_types);
  expect_sound(before, FixKind::product_types, before.step_ns / after.step_ns);
}

TEST(DeviceCopies, BeforeAnUpdateOfAPartAreNamed) {
  const auto program = [](bool copies, const char* writes) {
    return [=](Simulator& s, int) {
      for (int i = 0; i < 4; ++i) {
        if (copies) s.copy_in(int64_t{1} << 30, 760'000, false);
        s.kernel(writes, 5'600, 7, 4096);
      }
      s.kernel("sm90_gemm_bf16bf16", 5'000'000);
    };
  };
  const auto within = [](Trace& t) {
    for (DeviceOp& op : t.ops)
      if (op.kind == OpKind::copy) op.copy = CopyKind::device_to_device;
  };
  constexpr const char* kUpdate = "loop_dynamic_update_slice_fusion";
  const Told before = tell(program(true, kUpdate), within), after = tell(program(false, kUpdate));
  ASSERT_FALSE(before.fixes.worth.empty());
  EXPECT_EQ(before.fixes.worth[0].kind, FixKind::device_copies);
  EXPECT_EQ(before.verdict.id, "gpu_bound");
  const double gain = before.step_ns / after.step_ns;
  EXPECT_GT(gain, 1.4);
  expect_sound(before, FixKind::device_copies, gain);
  EXPECT_NEAR(find(before.fixes, FixKind::device_copies)->speedup / gain, 1, 0.03);
  // What reads all of it needs the copy.
  const Told other = tell(program(true, "loop_multiply_fusion"), within);
  EXPECT_LT(find(other.fixes, FixKind::device_copies)->speedup, 1.001);
}

// cuDNN's choice for a patch embedding in bf16, seen on an H200: not of fp32, which TF32 would round.
TEST(ProductTypes, Of16BitsWithoutTensorCoresArePromisedNoTf32) {
  const auto promised = [](const char* name) {
    const Told told = tell([=](Simulator& s, int) {
      s.kernel(name, 2'000'000, 7, 4704);
      for (int k = 0; k < 6; ++k) s.kernel("sm90_gemm_bf16bf16", 3'000'000);
    });
    return find(told.fixes, FixKind::precision)->speedup;
  };
  EXPECT_EQ(
      promised("void precomputed_convolve_sgemm<__nv_bfloat16, 128, 6, 7, 3, 3, 5, 1, false>"), 1);
  EXPECT_GT(
      promised("void precomputed_convolve_sgemm<float, 128, 6, 7, 3, 3, 5, 1, false>(int, int"),
      1.05);
}

}  // namespace
}  // namespace saturate::observe
