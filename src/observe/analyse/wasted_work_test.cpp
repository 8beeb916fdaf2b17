// SPDX-License-Identifier: Apache-2.0
// Kernels that only copy, that are parts of an attention or a formula, that compute in float64, and Fourier
// transforms that take a detour.
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

// Half of each head's numbers before the other half (rotary positions): no row is there twice.
TEST(KernelCopies, ThatPutSeveralIntoOneLeaveAsMuchToRead) {
  const Told told = tell([](Simulator& s, int) {
    s.kernel("nvjet_sm90_hsh_256x128_64x4_1x2_h_bz_coopA_TNT", 8'000'000);
    for (int k = 0; k < 2; ++k)
      s.kernel("void at::native::(anonymous namespace)::CatArrayBatchedCopy<at::native::", 500'000);
    s.kernel("void at::native::elementwise_kernel<128, 4, at::native::gpu_kernel_impl_nocast",
             900'000);
  });
  const Fix* f = find(told.fixes, FixKind::kernel_copies);
  EXPECT_GT(f->high, 1.0);
  EXPECT_LE(f->high, 1.11 * 9.9 / 8.9) << "the copies' own time and a tenth";
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

// What short copies cost a host that launches all the time is the launching.
TEST(KernelCopies, ThatOnlyTakeLaunchesAreNoCause) {
  const Told told = tell([](Simulator& s, int) {
    for (int i = 0; i < 100; ++i) {
      s.host(20'000);
      s.kernel(i % 2 == 0 ? kCopy : "nvjet_sm90_tst_64x32_64x16_2x1_v_bz_splitK_TNT", 2'000);
    }
  });
  EXPECT_EQ(told.verdict.id, "launch_bound");
  EXPECT_EQ(find(told.fixes, FixKind::kernel_copies)->speedup, 1);
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

// Backward each product has two gradients, and a mask that is filled in copies the weights first. A
// kernel of attention has none of that, nor its launches.
TEST(OneAttention, CountsItsBackwardPassItsCopiesAndItsLaunches) {
  const auto program = [](bool one_kernel) {
    return [=](Simulator& s, int) {
      for (int i = 0; i < 6; ++i) {
        s.kernel("nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_TNN", 300'000);
        s.kernel("vectorized_layer_norm_kernel", 40'000);
        if (one_kernel) {
          s.kernel("flash_bwd_kernel", 90'000);
          continue;
        }
        for (int k = 0; k < 2; ++k) s.kernel("nvjet_sm90_tst_64x512_64x2_1x2_h_bz_NTT", 80'000);
        for (const char* name : {"vectorized_elementwise_kernel<8, masked_scale_kernel<bool",
                                 "softmax_warp_backward<c10::BFloat16, c10::BFloat16, float, 10>",
                                 "elementwise_kernel<128, masked_fill_kernel"}) {
          s.host(60'000);
          s.kernel(name, 50'000);
        }
        for (int k = 0; k < 2; ++k) s.kernel("nvjet_sm90_tst_512x64_64x2_2x1_v_bz_NTN", 80'000);
      }
    };
  };
  const Told before = tell(program(false)), after = tell(program(true));
  const Fix& f = *find(before.fixes, FixKind::one_attention);
  const double gain = before.step_ns / after.step_ns;
  EXPECT_LE(gain, f.high);
  EXPECT_GE(gain, f.speedup) << "nearly all that can go goes here";
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
        "cupy_add__float64_float64_float64", "cupy_multiply__complex64_complex128_complex128",
        "void vector_fft<4096u, EPT<32u>, 1u, 3u, (padding_t)70, unsigned int, double, Host",
        "cunn_SoftMaxForward<2, double, double, double, SoftMaxForwardEpilogue>",
        "unrolled_elementwise_kernel<direct_copy_kernel_cuda(at::TensorIteratorBase&)::{lambda()#3}"
        "::operator()() const::{lambda()#6}::operator()() const::{lambda(double)#1}",
        "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<double>, "})
    EXPECT_TRUE(is_double(name)) << name;
  for (const char* name :
       {"void at::native::(anonymous "
        "namespace)::distribution_elementwise_grid_stride_kernel<float, 4,"
        " normal_kernel(at::TensorBase const&, double, double, at::CUDAGeneratorImpl*)",
        "nvjet_sm90_tst_128x256_64x4", "cupy_multiply__complex64_complex64_complex64",
        "void vector_fft<4096u, EPT<16u>, 1u, 5u, (padding_t)70, unsigned int, float, Host",
        "cupy_true_divide__float32_float_float32",
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

// A graph does not show what it holds; what was tried before it was made does.
TEST(Float64, MayBeInGraphsAfterProductsOfIt) {
  const auto program = [](const char* tried) {
    Simulator s;
    for (const char* name :
         {"sm90_xmma_gemm_f64f64_f64f64_f64_tn_n", tried, "gemm_fusion_dot_general_27"})
      s.kernel(name, 400'000);
    for (int i = 0; i < 24; ++i) {
      s.begin_step(i);
      s.graph(1, 9'000'000);
      s.synchronize();
    }
    Trace trace = s.take();
    const Analysis analysis = analyse(trace);
    return find_fixes(testing::replay_of(trace, analysis), analysis);
  };
  const FixReport doubles = program("sm90_xmma_gemm_f64f64_f64f64_f64_nt_n"),
                  singles = program("cutlass_80_simt_sgemm_256x128_8x4_nn_align1"),
                  others = program("sm90_xmma_gemm_tf32f32_tf32f32_f32_nt_n");
  const auto possible = [](const FixReport& fixes, FixKind kind) {
    const auto& all = fixes.possible;
    const auto at =
        std::find_if(all.begin(), all.end(), [=](const Fix& f) { return f.kind == kind; });
    return at == all.end() ? nullptr : &*at;
  };
  ASSERT_NE(possible(doubles, FixKind::float64), nullptr);
  EXPECT_EQ(possible(doubles, FixKind::float64)->speedup, 1) << "how much, nothing shows";
  EXPECT_GT(possible(doubles, FixKind::float64)->high, 4);
  EXPECT_EQ(possible(doubles, FixKind::precision), nullptr);
  // Products of fp32 without tensor cores before graphs, in the same way.
  ASSERT_NE(possible(singles, FixKind::precision), nullptr);
  EXPECT_EQ(possible(singles, FixKind::precision)->speedup, 1);
  EXPECT_GT(possible(singles, FixKind::precision)->high, 4);
  EXPECT_EQ(possible(singles, FixKind::float64), nullptr);
  for (const FixKind kind : {FixKind::float64, FixKind::precision})
    EXPECT_EQ(possible(others, kind), nullptr);
  // And in TF32, which 16 bits halve (JAX's GPT-2 gained 1.87x).
  ASSERT_NE(possible(others, FixKind::mixed), nullptr);
  EXPECT_EQ(possible(others, FixKind::mixed)->speedup, 1);
  EXPECT_GT(possible(others, FixKind::mixed)->high, 1.87);
  EXPECT_NE(possible(others, FixKind::mixed)->evidence.find("in TF32"), std::string::npos);
  EXPECT_EQ(possible(doubles, FixKind::mixed), nullptr);
  const FixReport halves = program("sm90_xmma_gemm_bf16bf16_bf16f32_f32_nt_n");
  EXPECT_EQ(possible(halves, FixKind::mixed), nullptr);
}

// A formula for four arrays, an operation at a time: one pass over memory for each array does it, and
// likely not one for all. Elsewhere the backward pass may read what lies between.
TEST(Fusion, OfOperationsOnArraysIsNoGuess) {
  const auto program = [](bool fused, const std::string& library) {
    return tell([=](Simulator& s, int) {
      for (int i = 0; i < 4; ++i) {
        if (fused) {
          s.kernel("tapered", 300'000);
          continue;
        }
        for (const char* name : {"multiply", "cos", "subtract", "multiply_2", "add"})
          s.kernel(library + name, 250'000);
      }
      s.kernel("nvjet_sm90_hsh_192x192_64x3_2x1_v_bz_coopB_NNN", 1'000'000);
    });
  };
  const Told before = program(false, "cupy_"), after = program(true, "");
  const Fix* f = find(before.fixes, FixKind::fusion);
  ASSERT_FALSE(before.fixes.worth.empty());
  EXPECT_EQ(before.fixes.worth[0].kind, FixKind::fusion);
  const double gain = before.step_ns / after.step_ns;
  EXPECT_LT(f->low, gain);
  EXPECT_GT(f->high, gain);
  EXPECT_LT(f->speedup, gain) << "arrays share no data";
  const Told torch = program(false, "elementwise_");
  ASSERT_FALSE(torch.fixes.possible.empty());
  EXPECT_EQ(torch.fixes.possible[0].kind, FixKind::fusion);
}

// An operation on more than 2^31 bytes comes in parts of one name, which are no passes over other data.
TEST(Fusion, JoinsThePartsOfLargeOperations) {
  const auto highest = [](int64_t blocks) {
    const Told t = tell([=](Simulator& s, int) {
      for (const char* name : {"elementwise_equal", "elementwise_less", "elementwise_and"})
        for (int part = 0; part < 4; ++part) s.kernel(name, 500'000, 7, blocks);
      s.kernel("nvjet_sm90_hsh_192x192_64x3_2x1_v_bz_coopB_NNN", 1'000'000);
    });
    const auto& all = t.fixes.possible;
    const auto at = std::find_if(all.begin(), all.end(),
                                 [](const Fix& f) { return f.kind == FixKind::fusion; });
    return at == all.end() ? 1.0 : at->high;
  };
  EXPECT_NEAR(highest(int64_t{1} << 19), 7.0 / (1 + 0.6 * 2), 0.05) << "one pass of four parts";
  EXPECT_LT(highest(1 << 12), 2.2) << "other data: four passes, joined only where they meet";
}

// Indices that are sorted in each step, to draw some of them or to merge what is equal.
TEST(Sorts, AreNamedWithTheirRange) {
  constexpr const char* kSort =
      "void cub::_V_300200_SM_900::detail::radix_sort::DeviceRadixSortOnesweepKernel<";
  EXPECT_TRUE(is_sort(kSort));
  EXPECT_TRUE(is_sort("void at::native::apply::coalesceValuesKernel<float, float>(l"));
  EXPECT_FALSE(is_sort("nvjet_sm90_hsh_192x192_64x3_2x1_v_bz_coopB_NNN"));
  const auto program = [=](bool sorted) {
    return [=](Simulator& s, int) {
      for (int k = 0; sorted && k < 4; ++k) s.kernel(kSort, 500'000);
      for (int k = 0; k < 5; ++k) s.kernel("sm90_gemm_bf16bf16", 400'000);
    };
  };
  const Told before = tell(program(true)), after = tell(program(false));
  ASSERT_FALSE(before.fixes.worth.empty());
  EXPECT_EQ(before.fixes.worth[0].kind, FixKind::sorts);
  expect_sound(before, FixKind::sorts, before.step_ns / after.step_ns);
  EXPECT_EQ(find(after.fixes, FixKind::sorts)->speedup, 1);
}

// What is computed for one row after the other could be for all of them at once.
TEST(Graphs, HaveNoCeilingWhereTheSameFewOperationsRepeat) {
  const auto program = [](int times) {
    return [=](Simulator& s, int) {
      for (int k = 0; k < 4; ++k) s.kernel("sm90_gemm_bf16bf16", 400'000);
      for (int k = 0; k < times; ++k) {
        s.host(15'000);
        s.copy_in(32, 1'000, true);
        s.host(15'000);
        s.kernel("index_put", 1'500);
      }
    };
  };
  const Told before = tell(program(256)), after = tell(program(1)), layers = tell(program(12));
  const Fix* graphs = find(before.fixes, FixKind::graphs);
  ASSERT_FALSE(graphs->ceiling);
  const double gain = before.step_ns / after.step_ns;
  EXPECT_GT(gain, graphs->speedup);
  expect_sound(before, FixKind::graphs, gain);
  EXPECT_NE(graphs->evidence.find("repeat the same few"), std::string::npos) << graphs->evidence;
  EXPECT_EQ(find(layers.fixes, FixKind::graphs)->evidence.find("repeat the same few"),
            std::string::npos);
}

// Norms lie between the casts and sums of an eager network, where only a compiler joins them: how much that
// brings does not show (a GPT-2 gained 1.25x). What a compiler made leaves nothing to join.
TEST(Fusion, OfAnEagerNetworkIsPossible) {
  const auto program = [](const char* norm, const char* cast) {
    return [=](Simulator& s, int) {
      for (int i = 0; i < 10; ++i) {
        s.kernel("nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_bias_TNT", 150'000);
        s.kernel(norm, 60'000);
        s.kernel(cast, 40'000);
      }
    };
  };
  const Told eager = tell(program("vectorized_layer_norm_kernel<float, float>",
                                  "vectorized_elementwise_kernel<8, bfloat16_copy_kernel")),
             compiled = tell(
                 program("triton_per_fused_native_layer_norm_0", "triton_poi_fused__to_copy_1"));
  const auto is_fusion = [](const Fix& f) { return f.kind == FixKind::fusion; };
  const auto& possible = eager.fixes.possible;
  const auto fix = std::find_if(possible.begin(), possible.end(), is_fusion);
  ASSERT_NE(fix, possible.end());
  EXPECT_EQ(fix->speedup, 1);
  EXPECT_GT(fix->high, kWorthPossible);
  // Also where joining the few neighbours that work element by element brings a little by itself.
  const Told some = tell([](Simulator& s, int) {
    for (int i = 0; i < 10; ++i) {
      s.kernel("nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_bias_TNT", 150'000);
      s.kernel("vectorized_layer_norm_kernel<float, float>", 60'000);
      s.kernel("vectorized_elementwise_kernel<8, bfloat16_copy_kernel", 30'000);
      s.kernel("vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>", 30'000);
    }
  });
  EXPECT_TRUE(std::any_of(some.fixes.possible.begin(), some.fixes.possible.end(), is_fusion));
  EXPECT_TRUE(
      std::none_of(compiled.fixes.possible.begin(), compiled.fixes.possible.end(), is_fusion));
}

// A kernel whose code alone says it may be bound by arithmetic, which float32 needs less of: more than
// the half that fewer bytes bring. A Monte Carlo of CuPy gained 4.27x.
TEST(Float64, OfWhichOnlyTheCodeTells) {
  const auto program = [](const char* kernel, int64_t ns) {
    return [=](Simulator& s, int) { s.kernel(kernel, ns); };
  };
  const Told before = tell(program("kernel [float64]", 16'700'000)),
             after = tell(program("kernel", 3'900'000));
  ASSERT_FALSE(before.fixes.worth.empty());
  EXPECT_EQ(before.fixes.worth[0].kind, FixKind::float64);
  expect_sound(before, FixKind::float64, before.step_ns / after.step_ns);
  EXPECT_EQ(find(after.fixes, FixKind::float64)->speedup, 1);
}

// A host that is always ahead waits in nearly every launch for a place in the queue: that is no time
// of its own, which would be left when the kernels take less.
TEST(Doubles, AreNoSlowerForAHostThatWaitsInItsLaunches) {
  const auto program = [](int64_t ns) {
    return [=](Simulator& s, int) {
      for (int k = 0; k < 48; ++k) {
        s.host(20'000);
        s.kernel("cupy_multiply__complex128_complex128_complex128", ns);
      }
    };
  };
  testing::Machine machine;
  machine.queue_depth = 100;
  const Told before = tell(program(130'000), {}, machine), after = tell(program(65'000));
  expect_sound(before, FixKind::float64, before.step_ns / after.step_ns);
}

// Weights of an LSTM that do not lie in one block, copied into one in every call, beside cuDNN's
// streams for the layers.
TEST(DeviceCopies, OfScatteredWeightsAreNamed) {
  const auto program = [](bool scattered) {
    return [=](Simulator& s, int) {
      for (int frame = 0; frame < 8; ++frame) {
        if (scattered) {
          s.kernel("void at::native::vectorized_elementwise_kernel<8, at::native::FillFunctor<c10",
                   200'000);
          for (int k = 0; k < 6; ++k) s.copy_in(64 << 20, 60'000, false);  // amended below
        }
        for (uint32_t layer = 0; layer < 2; ++layer) {
          s.kernel("nvjet_sm90_hsh_144x64_64x8_4x1_v_bz_TNN", 80'000, 8 + layer);
          s.kernel("void elemWiseRNNcell<__half, __half, float, (cudnnRNNMode_t)2, ", 12'000,
                   8 + layer);
        }
        s.kernel("sm90_gemm_bf16bf16", 300'000);
      }
    };
  };
  const auto within = [](Trace& t) {
    for (DeviceOp& op : t.ops)
      if (op.kind == OpKind::copy) op.copy = CopyKind::device_to_device;
  };
  const Told before = tell(program(true), within), after = tell(program(false));
  ASSERT_FALSE(before.fixes.worth.empty());
  const Fix& f = before.fixes.worth[0];
  EXPECT_EQ(f.kind, FixKind::device_copies);
  EXPECT_NE(f.action.find("flatten_parameters"), std::string::npos) << f.action;
  expect_sound(before, FixKind::device_copies, before.step_ns / after.step_ns);
  EXPECT_EQ(find(after.fixes, FixKind::device_copies)->speedup, 1);
}

// The gradient of table[indices], distances without products, the least of short rows.
TEST(SlowKernels, AreNamedWithTheirRange) {
  const auto program = [](const char* name, int64_t ns) {
    return [=](Simulator& s, int) {
      for (int k = 0; k < 3; ++k) s.kernel(name, ns);
      for (int k = 0; k < 5; ++k) s.kernel("sm90_gemm_bf16bf16", 400'000);
    };
  };
  const Told before = tell(program(
      "void (anonymous namespace)::indexing_backward_kernel<c10::BFloat16, 4>(long", 2'000'000));
  const Told after = tell(
      program("void at::native::(anonymous namespace)::embedding_backward_kernel<c10", 200'000));
  ASSERT_FALSE(before.fixes.worth.empty());
  EXPECT_EQ(before.fixes.worth[0].kind, FixKind::slow_kernels);
  expect_sound(before, FixKind::slow_kernels, before.step_ns / after.step_ns);
  EXPECT_EQ(find(after.fixes, FixKind::slow_kernels)->speedup, 1);
  EXPECT_NE(before.fixes.worth[0].action.find("embedding"), std::string::npos);
  EXPECT_TRUE(is_slow("void at::native::(anonymous namespace)::cdist_kernel_cuda_impl<float, at"));
  EXPECT_TRUE(is_slow("reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::ArgMinOps<f"));
  EXPECT_FALSE(is_slow("reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::MeanOps<f"));
}

// A sum with few results along an axis that is not contiguous: CuPy gives each result one block.
TEST(SlowKernels, AreThoseOfFewBlocksThatRunLong) {
  const auto program = [](int64_t ns, int64_t blocks, const char* name = "cupy_sum") {
    return [=](Simulator& s, int) {
      s.kernel(name, ns, 7, blocks);
      for (int k = 0; k < 5; ++k) s.kernel("cupy_subtract__float64_float64_float64", 200'000);
    };
  };
  const Told before = tell(program(35'000'000, 1)), after = tell(program(400'000, 128));
  ASSERT_FALSE(before.fixes.worth.empty());
  const Fix& f = before.fixes.worth[0];
  EXPECT_EQ(f.kind, FixKind::slow_kernels);
  EXPECT_NE(f.evidence.find("cupy_sum has 1 block"), std::string::npos) << f.evidence;
  expect_sound(before, FixKind::slow_kernels, before.step_ns / after.step_ns);
  EXPECT_EQ(find(after.fixes, FixKind::slow_kernels)->speedup, 1);
  EXPECT_EQ(find(tell(program(35'000'000, 1, "sm90_gemm_bf16bf16")).fixes, FixKind::slow_kernels)
                ->speedup,
            1)
      << "a product of few tiles";
}

// A formula of hundreds of operations on arrays, many of one name in a row, becomes one kernel.
TEST(Fusion, OfALongFormulaMayBeOneKernel) {
  const auto formula = [](int operations) {
    return [=](Simulator& s, int) {
      for (int k = 0; k < operations; ++k)
        s.kernel(k % 3 == 2 ? "cupy_add__float32_float32_float32"
                            : "cupy_multiply__float32_float32_float32",
                 26'000);
      s.kernel("cupy_sum", 60'000);
    };
  };
  const Told before = tell(formula(366)), after = tell(formula(12));
  ASSERT_FALSE(before.fixes.worth.empty());
  EXPECT_EQ(before.fixes.worth[0].kind, FixKind::fusion);
  expect_sound(before, FixKind::fusion, before.step_ns / after.step_ns);
  EXPECT_LE(find(before.fixes, FixKind::fusion)->high, 64);
}

// Rows that are picked by indices: caches that are put in another order, or look-ups, which have to be.
TEST(KernelCopies, OfPickedRowsArePossible) {
  constexpr const char* kPick = "void at::native::vectorized_gather_kernel<16, long>(char*, c";
  const auto possible = [](const char* name, int64_t ns) {
    const Told t = tell([=](Simulator& s, int) {
      for (int k = 0; k < 6; ++k) s.kernel(name, ns);
      for (int k = 0; k < 6; ++k) s.kernel("sm90_gemm_bf16bf16", 200'000);
    });
    const auto& all = t.fixes.possible;
    const auto at = std::find_if(all.begin(), all.end(),
                                 [](const Fix& f) { return f.kind == FixKind::kernel_copies; });
    return at == all.end() ? 1.0 : at->high;
  };
  EXPECT_NEAR(possible(kPick, 200'000), 2.2, 0.1);
  EXPECT_EQ(possible(kPick, 20'000), 1);
  EXPECT_EQ(possible(kCopy, 18'000), 1) << "copies of eight percent, and nothing picked";
}

// Softmax that only costs launches is the launches' matter.
TEST(OneAttention, IsNoCauseWhereTheDeviceWaitsForLaunches) {
  const Told t = tell([](Simulator& s, int) {
    for (int i = 0; i < 12; ++i) {
      for (const char* name : {"nvjet_sm90_tst_64x32_64x16_2x1_v_bz_TNT", "cunn_SoftMaxForward",
                               "nvjet_sm90_tst_64x32_64x16_2x1_v_bz_TNN"}) {
        s.host(20'000);
        s.kernel(name, 2'000);
      }
    }
  });
  EXPECT_EQ(find(t.fixes, FixKind::one_attention)->speedup, 1);
  ASSERT_FALSE(t.fixes.worth.empty());
  EXPECT_EQ(t.fixes.worth[0].kind, FixKind::graphs);
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
