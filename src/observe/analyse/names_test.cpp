// SPDX-License-Identifier: Apache-2.0
#include "observe/analyse/names.h"

#include <gtest/gtest.h>

namespace saturate::observe {
namespace {

TEST(Names, KernelsOfLibraries) {
  const struct {
    const char* name;
    KernelClass kind;
  } cases[] = {
      {"ampere_fp16_s16816gemm_fp16_128x128_ldg8_f2f_stages_32x5_tn", KernelClass::tensor},
      {"sm80_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x32", KernelClass::tensor},
      {"nvjet_tst_192x192_64x4_2x1_v_bz_coopB_bias_TNN", KernelClass::tensor},
      {"void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_256x64_16x4_nn_align4>",
       KernelClass::tensor},
      {"volta_h884gemm_256x64_ldg8_nn", KernelClass::tensor},
      {"void flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128, 64, 4> >",
       KernelClass::tensor},
      {"sm80_xmma_fprop_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc", KernelClass::tensor},
      {"triton_tem_fused_mm_3", KernelClass::tensor},
      {"attention_forward_mma_kernel", KernelClass::tensor},
      {"ampere_sgemm_128x64_tn", KernelClass::matrix},
      {"sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize64x256x8", KernelClass::matrix},
      {"void gemv2T_kernel_val<int, int, float>", KernelClass::memory},
      {"void vllm::paged_attention_v1_kernel<__nv_bfloat16, __nv_bfloat16, 128, 16>",
       KernelClass::memory},
      {"void flashinfer::BatchDecodeWithPagedKVCacheKernel<(flashinfer::PosEncodingMode)0",
       KernelClass::memory},
      {"mmha::masked_multihead_attention_kernel<float, 64>", KernelClass::memory},
      {"void saturate::kernels::cached_attention_mma_kernel<__nv_bfloat16, 64>",
       KernelClass::memory},
      {"void cublasLt::splitKreduce_kernel<32, 16, int, __nv_bfloat16>", KernelClass::memory},
      {"matmul_mma_join_kernel", KernelClass::memory},
      {"void at::native::vectorized_elementwise_kernel<4, at::native::AddFunctor>",
       KernelClass::memory},
      {"void at::native::(anonymous namespace)::multi_tensor_apply_kernel<TensorListMetadata<4> >",
       KernelClass::memory},
      {"void (anonymous namespace)::softmax_warp_forward<float, 10>", KernelClass::memory},
      {"triton_poi_fused_add_gelu_7", KernelClass::memory},
      {"ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
       KernelClass::communication},
      {"my_kernel", KernelClass::other},
      {"", KernelClass::other},
  };
  for (const auto& c : cases) EXPECT_EQ(classify_kernel(c.name), c.kind) << c.name;
}

TEST(Names, InputsOfProducts) {
  EXPECT_TRUE(is_tf32("sm80_xmma_fprop_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc"));
  EXPECT_TRUE(is_tf32("void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_256x64_16x4_nn_align4>"));
  EXPECT_FALSE(is_tf32("cutlass_80_tensorop_f16_s1688gemm_f16_256x64_nn_align8"));
  EXPECT_FALSE(is_tf32("ampere_sgemm_128x64_tn"));
}

TEST(Names, BackwardPasses) {
  EXPECT_TRUE(is_backward("void GeluBackwardCUDAKernelImpl(at::TensorIteratorBase&)"));
  EXPECT_TRUE(is_backward("layer_norm_grad_input_kernel_vectorized<c10::BFloat16, float>"));
  EXPECT_TRUE(is_backward("cudnn_generated_fort_native_sdpa_sm90_flash_bprop_wgmma_f16"));
  EXPECT_FALSE(is_backward("vectorized_layer_norm_kernel<c10::BFloat16, float, false>"));
}

TEST(Names, ArraysOfCuPyAreWorkedElementByElement) {
  EXPECT_EQ(classify_kernel("cupy_multiply__float32_float32_float32"), KernelClass::memory);
  EXPECT_TRUE(is_pointwise("cupy_multiply__float32_float32_float32"));
  EXPECT_FALSE(is_pointwise("cupy_sum"));
}

TEST(Names, Calls) {
  const struct {
    const char* name;
    CallClass kind;
    bool blocking_copy;
  } cases[] = {
      {"cudaLaunchKernel_v7000", CallClass::launch, false},
      {"cuLaunchKernelEx", CallClass::launch, false},
      {"cudaGraphLaunch", CallClass::launch, false},
      {"cudaMemsetAsync", CallClass::launch, false},
      {"cudaMemcpyAsync", CallClass::copy, false},
      {"cudaMemcpy", CallClass::copy, true},
      {"cuMemcpyDtoH_v2", CallClass::copy, true},
      {"cudaStreamSynchronize", CallClass::sync, false},
      {"cuCtxSynchronize", CallClass::sync, false},
      {"cudaEventQuery", CallClass::other, false},
      {"cudaEventRecord", CallClass::other, false},
      {"cudaMalloc", CallClass::allocate, false},
      {"cudaFreeHost", CallClass::allocate, false},
      {"cuMemCreate", CallClass::allocate, false},
      {"cudaHostAlloc", CallClass::allocate, false},
      {"cuModuleLoadDataEx", CallClass::load, false},
      {"cuLibraryLoadData", CallClass::load, false},
      {"cudaGraphInstantiate", CallClass::load, false},
      {"cudaGetDevice", CallClass::other, false},
  };
  for (const auto& c : cases) {
    EXPECT_EQ(classify_call(c.name), c.kind) << c.name;
    EXPECT_EQ(is_blocking_copy(c.name), c.blocking_copy) << c.name;
  }
}

TEST(Names, RoundingOfPyTorch) {
  const char* rounds =
      "void at::native::vectorized_elementwise_kernel<8, "
      "at::native::bfloat16_copy_kernel_cuda(at::TensorIteratorBase&)::{lambda(float)#1}";
  EXPECT_TRUE(is_rounding(rounds));
  EXPECT_TRUE(shows_elements(rounds));
  EXPECT_FALSE(is_rounding("void at::native::unrolled_elementwise_kernel<direct_copy_kernel_cuda"));
  EXPECT_TRUE(shows_elements("void at::native::elementwise_kernel<128, 4, CUDAFunctor_add<float>"));
  EXPECT_FALSE(shows_elements("triton_poi_fused_add_0"));
}

}  // namespace
}  // namespace saturate::observe
