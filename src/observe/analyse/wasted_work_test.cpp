// SPDX-License-Identifier: Apache-2.0
// Kernels that only copy, that are parts of an attention, that compute in float64, and Fourier transforms that take a detour.
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

constexpr const char* kCopy =
    "void at::native::elementwise_kernel<128, 4, at::native::gpu_kernel_impl_nocast<at::native::"
    "direct_copy_kernel_cuda(at::TensorIteratorBase&)::{lambda()#3}::operator()() const::{lambda()";

TEST(KernelCopies, AreInTheNames) {
  for (const char* name :
       {kCopy, "cupy_copy__float32_float32", "cupy_copy__complex64_complex64", "wrapped_transpose",
        "void at::native::(anonymous namespace)::CatArrayBatchedCopy_vectorized<at::native::"})
    EXPECT_TRUE(is_copy(name)) << name;
  for (const char* name :
       {"cupy_copy__float32_float64", "cupy_copy__int8_int32", "cupy_copy__",
        "loop_copy_add_fusion",
        "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda(at::",
        "void at::native::vectorized_elementwise_kernel<8, at::native::bfloat16_copy_kernel_cuda",
        "void at::native::vectorized_gather_kernel<16, long>"})
    EXPECT_FALSE(is_copy(name)) << name;
  EXPECT_TRUE(is_detour_transform("void multi_bluestein_fft<512u, EPT<8u>, 8u, 0u>"));
  EXPECT_FALSE(is_detour_transform("void regular_fft<512u, EPT<8u>, 8u, 0u>"));
}

// Layers that attend to keys and values of `repeats` query heads each.
Step decoder(int repeats, bool copies, int64_t copy_ns = 700'000) {
  return [=](Simulator& s, int) {
    for (int i = 0; i < 6; ++i) {
      s.kernel("nvjet_sm90_tst_64x32_64x16_2x1_v_bz_splitK_TNT", 11'000);
      if (copies)
        for (int k = 0; k < 2; ++k) s.kernel(kCopy, copy_ns, 7, 1'049'088);
      s.kernel("cudnn_generated_fort_native_sdpa_sm80_flash_fprop",
               940'000 / (copies ? 1 : repeats));
    }
  };
}

TEST(KernelCopies, OfRepeatedRowsAreNamedWithWhatReadsThem) {
  const Told before = tell(decoder(8, true));
  ASSERT_FALSE(before.fixes.worth.empty());
  const Fix& f = before.fixes.worth[0];
  EXPECT_EQ(f.kind, FixKind::kernel_copies);
  EXPECT_FALSE(f.ceiling);
  EXPECT_EQ(before.verdict.id, "gpu_bound");
  // Copies that repeated rows, and copies that only put them in another order.
  for (const int repeats : {8, 1}) {
    const double gain = before.step_ns / tell(decoder(repeats, false)).step_ns;
    EXPECT_LE(f.low, gain);
    EXPECT_GE(f.high, gain);
  }
}

// What reads the copies and takes longer than they do has work of its own.
TEST(KernelCopies, ThatAreShortPromiseTheirOwnTimeAlone) {
  const Told told = tell(decoder(8, true, 100'000));
  const Fix* f = find(told.fixes, FixKind::kernel_copies);
  const double gain = told.step_ns / tell(decoder(1, false)).step_ns;
  EXPECT_GE(f->high, gain);
  EXPECT_LE(f->high, 1.15 * gain);
  const Told hardly = tell(decoder(8, true, 20'000));
  EXPECT_EQ(find(hardly.fixes, FixKind::kernel_copies)->speedup, 1) << "some copies have to be";
}

// As PyTorch's names are: q k', scale, mask, softmax, dropout, times v; then a projection and a norm.
Step layers_of(bool one_kernel, bool log_softmax = false) {
  return [=](Simulator& s, int) {
    for (int i = 0; i < 6; ++i) {
      s.kernel("nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_TNN", 400'000);
      if (one_kernel) {
        s.kernel("flash_fwd_kernel", 260'000);
      } else {
        s.kernel("cutlass_80_tensorop_bf16_s16816gemm_bf16_128x64", 150'000);
        s.kernel("vectorized_elementwise_kernel<4, MulFunctor<float>", 160'000);
        s.kernel("elementwise_kernel<128, masked_fill_kernel", 170'000);
        s.kernel(log_softmax ? "cunn_SoftMaxForward<8, LogSoftMaxForwardEpilogue>"
                             : "softmax_warp_forward<c10::BFloat16, c10::BFloat16, float, 10>",
                 150'000);
        s.kernel("fused_dropout_kernel_vec", 180'000);
        s.kernel("cutlass_80_tensorop_bf16_s16816gemm_bf16_128x64_nn", 140'000);
      }
      s.kernel("vectorized_layer_norm_kernel", 40'000);
    }
  };
}

TEST(OneAttention, IsOfferedForAnAttentionThatWritesItsWeights) {
  EXPECT_TRUE(is_softmax("triton_per_fused__softmax_add_2"));
  EXPECT_FALSE(is_softmax("cunn_SoftMaxForward<LogSoftMaxForwardEpilogue>"));
  const Told before = tell(layers_of(false)), after = tell(layers_of(true));
  const Fix* f = find(before.fixes, FixKind::one_attention);
  EXPECT_GT(f->speedup, 1.4);
  EXPECT_EQ(before.fixes.worth[0].kind, FixKind::one_attention);
  expect_sound(before, FixKind::one_attention, before.step_ns / after.step_ns);
  EXPECT_EQ(find(after.fixes, FixKind::one_attention)->speedup, 1);
  EXPECT_EQ(find(tell(layers_of(false, true)).fixes, FixKind::one_attention)->speedup, 1)
      << "a loss between two products";
}

// A router's softmax, which a choice follows; and one behind a look-up.
TEST(OneAttention, IsNotOfferedForOtherSoftmaxes) {
  for (const char* between : {"sbtopk::gatherTopK<float>", "vectorized_gather_kernel<16, long>",
                              "vectorized_layer_norm_kernel"}) {
    const Told told = tell([=](Simulator& s, int) {
      for (int i = 0; i < 6; ++i) {
        s.kernel("nvjet_sm90_tst_64x32_64x16_2x1_v_bz_splitK_TNT", 150'000);
        s.kernel("softmax_warp_forward<float, float, float, 6>", 100'000);
        s.kernel(between, 120'000);
        s.kernel("nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_TNN", 150'000);
      }
    });
    EXPECT_EQ(find(told.fixes, FixKind::one_attention)->speedup, 1) << between;
  }
}

TEST(Float64, IsInTheNames) {
  for (const char* name :
       {"sm90_xmma_gemm_f64f64_f64f64_f64_tn_n_tilesize64x128x16", "cutlass_80_tensorop_d884gemm",
        "cupy_add__float64_float64_float64",
        "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<double>, "})
    EXPECT_TRUE(is_double(name)) << name;
  for (const char* name :
       {"void at::native::(anonymous "
        "namespace)::distribution_elementwise_grid_stride_kernel<float, 4,"
        " normal_kernel(at::TensorBase const&, double, double, at::CUDAGeneratorImpl*)",
        "nvjet_sm90_tst_128x256_64x4", "cupy_true_divide__float32_float_float32",
        "FusedAdamMathFunctor<float, 4, (ADAM_MODE)1, false>, float const*, double, double, "
        "double>"})
    EXPECT_FALSE(is_double(name)) << name;
}

// TF32's switches and autocast leave float64 as it is: they promise nothing for it.
TEST(Float64, IsNamedAndNoSwitchIsOffered) {
  const auto program = [](bool doubles) {
    return [=](Simulator& s, int) {
      for (int i = 0; i < 4; ++i) {
        s.kernel(
            doubles ? "sm90_xmma_gemm_f64f64_f64f64_f64_tn_n" : "sm90_xmma_gemm_tf32f32_tf32f32",
            doubles ? 1'300'000 : 220'000);
        s.kernel(doubles ? "distribution_elementwise_grid_stride_kernel<double, 2,"
                         : "distribution_elementwise_grid_stride_kernel<float, 4,",
                 doubles ? 230'000 : 120'000);
        s.kernel("nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_bias_TNT", 1'660'000);
      }
    };
  };
  const Told before = tell(program(true)), after = tell(program(false));
  ASSERT_FALSE(before.fixes.worth.empty());
  EXPECT_EQ(before.fixes.worth[0].kind, FixKind::float64);
  expect_sound(before, FixKind::float64, before.step_ns / after.step_ns);
  EXPECT_LT(find(before.fixes, FixKind::precision)->speedup, 1.001);
  EXPECT_LT(find(before.fixes, FixKind::mixed)->speedup, 1.001);
  EXPECT_EQ(find(after.fixes, FixKind::float64)->speedup, 1);
}

TEST(Transforms, OfAwkwardLengthsAreNamed) {
  const auto program = [](const char* name, int64_t ns) {
    return [=](Simulator& s, int) {
      for (int i = 0; i < 3; ++i) {
        s.kernel("cupy_multiply__complex64_complex64_complex64", 700'000);
        for (int k = 0; k < 8; ++k) s.kernel(name, ns);
      }
    };
  };
  const Told before = tell(program("void multi_bluestein_fft<512u, EPT<8u>, 8u, 0u>", 840'000));
  const Told after = tell(program("void regular_fft<256u, EPT<16u>, 16u, 0u>", 250'000));
  ASSERT_FALSE(before.fixes.worth.empty());
  EXPECT_EQ(before.fixes.worth[0].kind, FixKind::transforms);
  expect_sound(before, FixKind::transforms, before.step_ns / after.step_ns);
  EXPECT_EQ(find(after.fixes, FixKind::transforms)->speedup, 1);
}

}  // namespace
}  // namespace saturate::observe
