// SPDX-License-Identifier: Apache-2.0
// Every reason for which an implementation refuses, provoked, for GPUs that are not here: fits
// functions follow no pointer and ask no driver. A reason in the sources that no row provokes fails.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <set>
#include <sstream>
#include <string>

#include "kernels/activation/activation.h"
#include "kernels/attention/cute/cute.h"
#include "kernels/attention/impl.h"
#include "kernels/attention/int8/int8.h"
#include "kernels/attention/materialised/materialised.h"
#include "kernels/block_scaled/block_scaled.h"
#include "kernels/compression/compression.h"
#include "kernels/conv/conv2d_impl.h"
#include "kernels/decode/beam_step.h"
#include "kernels/decode/cached_attention.h"
#include "kernels/decode/mean_logits.h"
#include "kernels/decode/memory_weights.h"
#include "kernels/decode/sample_step.h"
#include "kernels/embedding/embedding.h"
#include "kernels/fp8/fp8.h"
#include "kernels/gemm/bf16/matmul_bf16_cpu.h"
#include "kernels/gemm/few_rows/matmul_few_rows.h"
#include "kernels/gemm/grouped/grouped_gemm_impl.h"
#include "kernels/gemm/matmul_impl.h"
#include "kernels/gemm/matmul_plan.h"
#include "kernels/gemm/ordered/matmul_ordered_cpu.h"
#include "kernels/gemm/packed/packed_linear.h"
#include "kernels/gemm/sgemm/sgemm.h"
#include "kernels/gemm/tune/sgemm_jit.h"
#include "kernels/gemm/tune/table.h"
#include "kernels/gemm/wgmma/matmul_fp16x3.h"
#include "kernels/gemm/wgmma/matmul_group.h"
#include "kernels/gemm/wgmma/matmul_tf32.h"
#include "kernels/gemm/wgmma/matmul_wgmma.h"
#include "kernels/gemm/wgmma/matmul_wgmma_activation.h"
#include "kernels/lists.h"
#include "kernels/loss/cross_entropy.h"
#include "kernels/loss/linear_cross_entropy.h"
#include "kernels/norm/norm.h"
#include "kernels/relative_bias/relative_bias.h"

namespace saturate::kernels {
namespace {

constexpr Device kCpu{}, kGpu{DeviceKind::cuda, 0};
constexpr Capability kHopper{
    .major = 9, .multiprocessors = 132, .shared_bytes = 232448, .tensor_maps = true};
constexpr int64_t k1 = 1;

char* any(size_t offset = 0) {  // a pointer that nobody follows, aligned to 256 plus the offset
  return reinterpret_cast<char*>(uintptr_t{1} << 20) + offset;
}

// What was provoked so far.
class Reasons {
 public:
  void expect(const std::string& reason, Fit fit, const char* impl) {
    ASSERT_NE(fit.reason, nullptr) << impl << " does not refuse, where expected: " << reason;
    EXPECT_EQ(fit.reason, reason) << impl;
    seen_.insert(fit.reason);
  }
  const std::set<std::string>& seen() const { return seen_; }

 private:
  std::set<std::string> seen_;
};

// The refusal of the list's implementation of that name, or that it does not pay.
template <class Args>
Fit refusal(std::span<const Impl<Args>> list, const std::string& name, const Context& ctx,
            const Args& args) {
  for (const Impl<Args>& impl : list) {
    if (impl.name != name) continue;
    const Fit fit = impl.fits(ctx, args);
    return fit && impl.pays != nullptr ? impl.pays(ctx, args) : fit;
  }
  return {"no such implementation"};
}

// --- attention

using B = AttentionBackwardArgs;

// Fits Hopper's kernels: two sequences of 200 rows, four heads of 64.
B attention() {
  B b;
  AttentionArgs& a = b.forward;
  a.q = a.k = a.v = any(), a.o = a.lse = any();
  a.cu_q = a.cu_k = reinterpret_cast<const int32_t*>(any());
  a.sequences = 2, a.heads = a.kv_heads = 4, a.head_size = 64;
  a.q_rows = a.k_rows = 400, a.max_q = a.max_k = 200;
  a.q_stride = a.k_stride = a.v_stride = a.o_stride = 256;
  a.dtype = DType::bf16;
  b.d_o = any(), b.d_q = b.d_k = b.d_v = any(), b.delta = any();
  b.d_q_stride = b.d_k_stride = b.d_v_stride = 256;
  b.workspace_bytes = kAnyWorkspace;
  return b;
}

struct AttentionRow {
  const char* impl;
  const char* reason;
  std::function<void(B&, AttentionArgs&, Capability&)> change;
};

// Assignments to the arguments and to the GPU's capability.
#define OF(...)                                 \
  [](B& b, AttentionArgs& a, Capability& gpu) { \
    (void)b, (void)a, (void)gpu;                \
    __VA_ARGS__;                                \
  }

#if SATURATE_WITH_CUDA
// clang-format off
const AttentionRow kAttentionOnGpus[] = {
    {"forward_plain", "dtype is f64, which only the CPU computes", OF(a.dtype = DType::f64)},
    {"forward_plain", "head size is above 256 (shared memory of one tile)", OF(a.head_size = 257)},
    {"forward_plain", "more than 65535 heads (second grid dimension)", OF(a.heads = 65536)},
    {"forward_plain", "a sequence may be longer than 2^30 rows (32-bit positions)", OF(a.max_q = k1 << 30)},
    {"forward_plain", "more than 2^31 tiles (grid size)", OF(a.sequences = k1 << 30)},
    {"backward_plain", "more than 2^20 columns of d_bias (second grid dimension)",
     OF(b.d_bias = any(), a.max_k = k1 << 21)},
    {"backward_plain", "more than 2^31 tiles of d_bias (grid size)", OF(b.d_bias = any(), a.sequences = k1 << 28)},
    {"forward_mma", "dtype is neither bf16 nor f16 (tensor-core operands)", OF(a.dtype = DType::f32)},
    {"forward_mma", "head size is none of 32, 64, 128", OF(a.head_size = 96)},
    {"forward_mma", "head size is 128 and sequences are longer than 64 rows in the mean",
     OF(a.head_size = 128)},
    {"forward_mma", "q, k, v or o is not aligned to 16 bytes, or its stride is no multiple of 8", OF(a.k = any(8))},
    {"forward_mma", "the GPU is older than compute capability 8.0", OF(gpu.major = 7)},
    {"forward_mma", "no bottom-right causal alignment",
     OF(a.causal = true, a.alignment = CausalAlignment::bottom_right, ++a.cu_k)},
    {"forward_mma", "no sliding window", OF(a.window_left = 9)},
    {"forward_mma", "no soft cap", OF(a.soft_cap = 1)},
    {"forward_mma", "no additive bias", OF(a.bias = any())},
    {"forward_mma", "no ALiBi slopes", OF(a.alibi_slopes = any())},
    {"forward_mma", "no attention sinks", OF(a.sinks = any())},
    {"forward_mma", "no fused rotary positions", OF(a.rotary_base = 100)},
    {"forward_mma", "no value head size of its own", OF(a.v_head_size = 32)},
    {"forward_mma", "no block mask", OF(a.block_mask = reinterpret_cast<const uint32_t*>(any()))},
    {"backward_mma", "a gradient is not aligned to 16 bytes, or its stride is no multiple of 8",
     OF(b.d_q_stride = 260)},
    {"backward_short", "head size is neither 32 nor 64", OF(a.head_size = 128)},
    {"backward_short", "sequences are longer than 64 rows in the mean", OF()},
    {"backward_short", "a sequence may be longer than 128 rows", OF(a.q_rows = a.k_rows = 100)},
    {"backward_short", "more than 2^31 blocks (grid size)",
     OF(a.max_q = a.max_k = 60, a.kv_heads = 1 << 27)},
    {"forward_bf16x6", "dtype is not f32", OF()},
    {"forward_bf16x6", "head size is none of 32, 64, 128", OF(a.dtype = DType::f32, a.head_size = 48)},
    {"forward_bf16x6", "q, k, v or o is not aligned to 16 bytes, or its stride is no multiple of 4",
     OF(a.dtype = DType::f32, a.o_stride = 258)},
    {"backward_bf16x6", "a gradient is not aligned to 16 bytes, or its stride is no multiple of 4",
     OF(a.dtype = DType::f32, b.d_v = any(4))},
    {"forward_features", "a head size is no multiple of 8", OF(a.head_size = 60)},
    {"forward_features", "fused rotary positions need a head size that is a multiple of 16",
     OF(a.head_size = 72, a.rotary_base = 100)},
    {"forward_features", "a head size is above 256", OF(a.head_size = 264)},
    {"forward_features", "the GPU has too little shared memory for heads this wide", OF(gpu.shared_bytes = 20000)},
    {"forward_hopper", "dtype is neither bf16 nor f16", OF(a.dtype = DType::f32)},
    {"forward_hopper", "head size is neither 64 nor 128", OF(a.head_size = 96)},
    {"forward_hopper", "a soft cap and ALiBi slopes together", OF(a.soft_cap = 1, a.alibi_slopes = any())},
    {"forward_hopper", "dropout together with a feature", OF(a.dropout = 0.1f, a.soft_cap = 1)},
    {"forward_hopper", "dropout is above 31/32", OF(a.dropout = 0.99f)},
    {"forward_hopper", "there are no keys", OF(a.k_rows = 0)},
    {"forward_hopper", "more than 2^30 rows or columns (coordinates of TMA)", OF(a.q_rows = k1 << 30)},
    {"forward_hopper", "more than 2^30 tiles", OF(a.sequences = k1 << 29)},
    {"forward_hopper", "needs compute capability 9.0", OF(gpu.major = 8)},
    {"forward_hopper", "the driver has no tensor maps", OF(gpu.tensor_maps = false)},
    {"forward_hopper", "sequences are short in the mean", OF(a.q_rows = 100)},
    {"backward_hopper", "a matrix is not aligned to 16 bytes, or its stride is no multiple of 8", OF(b.d_o = any(2))},
    {"backward_hopper", "more than 2^30 blocks of keys (32-bit numbers)", OF(a.sequences = k1 << 28)},
    {"backward_hopper", "more than 2^30 rows (32-bit coordinates of TMA)", OF(a.k_rows = k1 << 30)},
    {"backward_hopper", "more than 2^29 blocks of queries (32-bit numbers)",
     OF(a.heads = 65536, a.q_rows = k1 << 22)},
    {"backward_hopper", "the workspace is too small for the fp32 sums of d_q", OF(b.workspace_bytes = 1000)},
    {"backward_hopper", "sequences are short in the mean", OF(a.q_rows = a.k_rows = 100)},
    {"forward_wide", "head sizes are neither 256 nor 192 with values of 128", OF(a.head_size = 192)},
    {"forward_wide", "dropout is not built for this kernel", OF(a.head_size = 256, a.dropout = 0.1f)},
    {"forward_wide", "sequences are short in the mean", OF(a.head_size = 256, a.q_rows = 100)},
    {"backward_wide", "sequences are short in the mean", OF(a.head_size = 256, a.k_rows = 100)},
};
// clang-format on
#endif

struct RungRow {
  Fit (*fits)(const Context&, const AttentionArgs&) noexcept;
  const char* reason;
  Device device;
  std::function<void(AttentionArgs&, Capability&)> change;
};
const RungRow kAttentionRungs[] = {
    {attention_forward_int8_fits, "dropout", kGpu,
     [](AttentionArgs& a, Capability&) { a.dropout = 0.1f; }},
    {attention_forward_int8_fits, "more than 2^31 rows of heads (grid size)", kGpu,
     [](AttentionArgs& a, Capability&) { a.q_rows = k1 << 30; }},
    {attention_forward_int8_fits, "the CPU does not compute it", kCpu,
     [](AttentionArgs&, Capability&) {}},
    {attention_forward_materialised_fits, "dtype is neither f32 nor f64", kCpu,
     [](AttentionArgs&, Capability&) {}},
    {attention_forward_materialised_fits, "sequences differ in length, or rows lie outside them",
     kGpu, [](AttentionArgs& a, Capability&) { a.q_rows = 401; }},
    {attention_forward_materialised_fits, "there are no queries or no keys", kGpu,
     [](AttentionArgs& a, Capability&) { a.q_rows = a.max_q = 0; }},
    {attention_forward_materialised_fits, "query heads share key heads", kGpu,
     [](AttentionArgs& a, Capability&) { a.kv_heads = 2; }},
    {attention_forward_materialised_fits, "more than 2^31 rows (grid size)", kGpu,
     [](AttentionArgs& a, Capability&) {
       a.sequences = k1 << 24, a.q_rows = a.k_rows = int64_t{200} << 24;
     }},
};

void provoke_attention(Reasons& reasons) {
  const B fits = attention();
  reasons.expect("dtype is neither f32 nor f64",
                 refusal(attention_forward_impls(), "attention_forward_cpu", {kCpu}, fits.forward),
                 "cpu");
#if SATURATE_WITH_CUDA
  for (const AttentionRow& row : kAttentionOnGpus) {
    B b = attention();
    Capability gpu = kHopper;
    row.change(b, b.forward, gpu);
    const Context ctx{.device = kGpu, .capability = &gpu};
    const std::string name = std::string("attention_") + row.impl + "_cuda";
    const bool forward = name.starts_with("attention_forward");
    reasons.expect(row.reason,
                   forward ? refusal(attention_forward_impls(), name, ctx, b.forward)
                           : refusal(attention_backward_impls(), name, ctx, b),
                   row.impl);
  }
#endif
  for (const RungRow& row : kAttentionRungs) {
    AttentionArgs a = fits.forward;
    Capability gpu = kHopper;
    row.change(a, gpu);
    reasons.expect(row.reason, row.fits({.device = row.device, .capability = &gpu}, a), "a rung");
  }
  if (const Fit built = attention_cute_is_built(); !built)
    reasons.expect(
        "not built: needs CUDA and the headers of CUTLASS (cmake -DSATURATE_CUTLASS=FOLDER)", built,
        "cute");
}

// --- products

// Fits the tensor cores of every kind: bf16, B transposed.
MatmulArgs product() {
  return {.a = any(),
          .b = any(),
          .c = any(),
          .d = any(),
          .m = 256,
          .n = 256,
          .k = 256,
          .lda = 256,
          .ldb = 256,
          .ldc = 256,
          .ldd = 256,
          .tb = Transpose::yes,
          .ab_type = DType::bf16,
          .d_type = DType::bf16};
}
MatmulArgs product_f32() {
  MatmulArgs x = product();
  x.ab_type = x.d_type = DType::f32;
  return x;
}
MatmulArgs product_bf16() {
  MatmulArgs x = product_f32();
  x.allow_bf16 = true;
  return x;
}
template <bool kHas>
Fit bf16_fits(const Context&, const MatmulArgs& x) noexcept {
  return matmul_bf16_fits(x, kHas);
}

template <bool kBlasKeepsRows>
Fit ordered_fits(const Context&, const MatmulArgs& x) noexcept {
  return matmul_ordered_fits(x, kBlasKeepsRows);
}

struct ProductRow {
  Fit (*fits)(const Context&, const MatmulArgs&) noexcept;
  const char* reason;
  MatmulArgs (*start)();
  std::function<void(MatmulArgs&, Context&, Capability&)> change;
};
#define WITH(...)                                    \
  [](MatmulArgs& x, Context& ctx, Capability& gpu) { \
    (void)x, (void)ctx, (void)gpu;                   \
    __VA_ARGS__;                                     \
  }

// clang-format off
const ProductRow kProducts[] = {
    {matmul_blas_cpu_fits, "the CPU multiplies f32 and f64 only", product, WITH()},
    {matmul_blas_cpu_fits, "the CPU keeps what an activation is given, not its slopes",
     product_f32, WITH(x.epilogue.slopes = true)},
    {matmul_blas_cpu_fits, "the CPU sums no columns beside a product",
     product_f32, WITH(x.epilogue.column_sum = reinterpret_cast<float*>(any()))},
    {matmul_blas_cpu_fits, "the CPU has no gated epilogue",
     product_f32, WITH(x.epilogue.kind = EpilogueKind::gated)},
    {matmul_blas_cpu_fits, "the CPU's epilogues take one dense product without C",
     product_f32, WITH(x.epilogue.kind = EpilogueKind::activation, x.beta = 1)},
    {matmul_blas_cpu_fits, "a size exceeds the integer type of BLAS", product_f32, WITH(x.ldd = k1 << 31)},
    {ordered_fits<false>, "the CPU multiplies f32 and f64 only", product, WITH()},
    {ordered_fits<true>, "OpenBLAS sums each row alike on this processor, and is faster", product_f32, WITH()},
    {ordered_fits<false>, "the CPU sums no columns beside a product",
     product_f32, WITH(x.epilogue.column_sum = reinterpret_cast<float*>(any()))},
    {matmul_bf16_cpu_fits, "multiplies f32 with allow_bf16 only", product_f32, WITH()},
    {bf16_fits<false>, "this CPU has no AVX512-BF16", product_bf16, WITH()},
    {bf16_fits<true>, "multiplies by no factor alpha", product_bf16, WITH(x.alpha = 2)},
    {bf16_fits<true>, "nothing to multiply (k = 0)", product_bf16, WITH(x.k = 0)},
    {bf16_fits<true>, "fewer than 24 columns, of 64 that are multiplied", product_bf16, WITH(x.n = 23)},
    {sgemm_plain_fits, "only f32 in and out", product, WITH()},
    {sgemm_plain_fits, "operands must not be transposed", product_f32, WITH()},
    {sgemm_plain_fits, "no bias in this rung", product_f32, WITH(x.tb = Transpose::no, x.bias = any())},
#if SATURATE_WITH_CUDA
    {matmul_cublaslt_cuda_fits, "f64 runs on the CPU only", product, WITH(x.ab_type = x.d_type = DType::f64)},
    {matmul_cublaslt_cuda_fits, "cuBLASLt is asked for no epilogue beyond the bias",
     product, WITH(x.epilogue.kind = EpilogueKind::gated)},
    {matmul_cublaslt_cuda_fits, "more than 2^31 products", product, WITH(x.batch = k1 << 31)},
    {sgemm_tma_cuda_fits, "TF32 is allowed: tensor cores are faster", product_f32, WITH(x.allow_tf32 = true)},
    {sgemm_tma_cuda_fits, "rows of a and b must start on 16 bytes for TMA", product_f32, WITH(x.lda = 257)},
    {sgemm_tma_cuda_fits, "more than 2^30 rows, columns or tiles", product_f32, WITH(x.m = k1 << 31)},
    {sgemm_jit_fits, "runs on GPUs only", product_f32, WITH(ctx.device = kCpu)},
    {sgemm_jit_fits, "f32 in and out only", product, WITH()},
    {sgemm_jit_fits, "operands must not be transposed", product_f32, WITH()},
    {sgemm_jit_fits, "no bias", product_f32, WITH(x.tb = Transpose::no, x.bias = any())},
    {sgemm_jit_fits, "no batch and no epilogue", product_f32, WITH(x.tb = Transpose::no, x.batch = 2)},
    {matmul_mma_cuda_fits, "a and b are neither bf16 nor f16 (tensor-core operands)", product_f32, WITH()},
    {matmul_mma_cuda_fits, "bf16 needs compute capability 8.0", product, WITH(gpu.major = 7)},
    {matmul_mma_cuda_fits, "the GPU is older than compute capability 7.5",
     product, WITH(gpu.major = 7, gpu.minor = 0, x.ab_type = x.d_type = DType::f16)},
    {matmul_mma_cuda_fits, "a size is above 2^29 (32-bit positions)", product, WITH(x.k = (k1 << 29) + 1)},
    {matmul_mma_cuda_fits, "more than 2^31 tiles (grid size)", product, WITH(x.m = k1 << 28, x.n = k1 << 28)},
    {matmul_mma_cuda_fits, "more than 65535 products (third grid dimension)", product, WITH(x.batch = 65536)},
    {matmul_mma_cuda_fits, "keeps no bits of relu", product, WITH(x.epilogue.bits = true)},
    {matmul_mma_cuda_fits, "the workspace is too small for the column sums of all rows of tiles",
     product, WITH(x.m = 4096, x.epilogue.column_sum = reinterpret_cast<float*>(any()))},
    {matmul_group_fits, "groups are of weight gradients: A transposed, B as it is", product, WITH()},
    {matmul_group_fits, "products in a group have no bias",
     product, WITH(x.ta = Transpose::yes, x.tb = Transpose::no, x.bias = any())},
    {matmul_group_fits, "groups run on GPUs",
     product, WITH(x.ta = Transpose::yes, x.tb = Transpose::no, ctx.device = kCpu)},
    {matmul_few_rows_cuda_fits, "a and b are neither bf16 nor f16", product_f32, WITH(x.m = 64)},
    {matmul_few_rows_cuda_fits, "more than 64 rows", product, WITH(x.m = 65)},
    {matmul_few_rows_cuda_fits, "only A B^T is built", product, WITH(x.m = 64, x.tb = Transpose::no)},
    {matmul_few_rows_cuda_fits, "one product at a time", product, WITH(x.m = 64, x.batch = 2)},
    {matmul_few_rows_cuda_fits, "no epilogue but bias, residual and activation",
     product, WITH(x.m = 64, x.epilogue.kind = EpilogueKind::derivative)},
    {matmul_few_rows_cuda_fits, "A or B is not aligned to 16 bytes in every row",
     product, WITH(x.m = 64, x.k = 252)},
    {matmul_few_rows_cuda_fits, "nothing to multiply (k = 0)", product, WITH(x.m = 64, x.k = 0)},
    {matmul_few_rows_cuda_fits, "a size exceeds 2^30", product, WITH(x.m = 64, x.n = k1 << 30)},
    {matmul_few_rows_cuda_fits, "the GPU is older than compute capability 8.0 (7.5 for f16)",
     product, WITH(x.m = 64, gpu.major = 7)},
    {matmul_few_rows_cuda_pays, "others are faster with so many rows", product, WITH(x.m = 33)},
    {matmul_wgmma_cuda_fits, "multiplies bf16 and f16 only", product_f32, WITH()},
    {matmul_wgmma_cuda_fits, "op(A) and op(B) both transposed", product, WITH(x.ta = Transpose::yes)},
    {matmul_wgmma_cuda_fits, "a transposed A needs results in f32",
     product, WITH(x.ta = Transpose::yes, x.tb = Transpose::no)},
    {matmul_wgmma_cuda_fits, "results must have the operands' type", product, WITH(x.d_type = DType::f32)},
    {matmul_wgmma_cuda_fits, "A or B is not aligned to 16 bytes in every row", product, WITH(x.lda = 257)},
    {matmul_wgmma_cuda_fits, "D is not aligned to 16 bytes in every row", product, WITH(x.ldd = 257)},
    {matmul_wgmma_cuda_fits, "D is not aligned to 8 bytes in every row",
     product, WITH(x.ta = Transpose::yes, x.tb = Transpose::no, x.d_type = DType::f32, x.ldd = 257)},
    {matmul_wgmma_cuda_fits, "C is not aligned to 16 bytes in every row", product, WITH(x.beta = 1, x.ldc = 257)},
    {matmul_wgmma_cuda_fits, "one product at a time", product, WITH(x.batch = 2)},
    {matmul_wgmma_cuda_fits, "has no epilogue but the bias",
     product, WITH(x.epilogue.kind = EpilogueKind::activation)},
    {matmul_wgmma_cuda_fits, "n is not a multiple of 8", product, WITH(x.n = 255)},
    {matmul_wgmma_cuda_fits, "nothing to multiply (k = 0)", product, WITH(x.k = 0)},
    {matmul_wgmma_cuda_fits, "a size exceeds 2^30", product, WITH(x.m = k1 << 30)},
    {matmul_wgmma_activation_cuda_fits, "has no epilogue but an activation", product, WITH()},
    {matmul_wgmma_activation_cuda_fits, "computes relu and gelu only",
     product, WITH(x.epilogue = {EpilogueKind::activation, ActivationKind::silu})},
    {matmul_wgmma_activation_cuda_fits, "keeps slopes of gelu only, and where aux says",
     product, WITH(x.epilogue = {.kind = EpilogueKind::activation, .aux = any(), .ld_aux = 256, .slopes = true})},
    {matmul_wgmma_activation_cuda_fits, "keeps of relu bits only, and where aux says",
     product, WITH(x.epilogue = {EpilogueKind::activation, ActivationKind::relu, any(), 256})},
    {matmul_wgmma_activation_cuda_fits, "multiplies by a transposed B only",
     product, WITH(x.epilogue.kind = EpilogueKind::activation, x.tb = Transpose::no)},
    {matmul_wgmma_activation_cuda_fits, "adds no C",
     product, WITH(x.epilogue.kind = EpilogueKind::activation, x.beta = 1)},
    {matmul_wgmma_activation_cuda_fits, "aux is not aligned to 16 bytes in every row, bits to 8",
     product, WITH(x.epilogue = {EpilogueKind::activation, ActivationKind::gelu_tanh, any(2), 256})},
    {matmul_wgmma_derivative_cuda_fits, "has no epilogue but a derivative", product, WITH()},
    {matmul_wgmma_derivative_cuda_fits, "knows the slopes of relu and gelu only",
     product, WITH(x.epilogue = {EpilogueKind::derivative, ActivationKind::silu})},
    {matmul_wgmma_derivative_cuda_fits, "takes of relu bits only",
     product, WITH(x.epilogue.kind = EpilogueKind::derivative)},
    {matmul_wgmma_derivative_cuda_fits, "multiplies by B as it is only",
     product, WITH(x.epilogue = {EpilogueKind::derivative, ActivationKind::gelu_tanh})},
    {matmul_wgmma_derivative_cuda_fits, "adds neither C nor a bias",
     product, WITH(x.epilogue = {EpilogueKind::derivative, ActivationKind::gelu_tanh},
                   x.tb = Transpose::no, x.beta = 1)},
    {matmul_wgmma_derivative_cuda_fits, "aux is not aligned to 16 bytes in every row, bits to 8",
     product, WITH(x.epilogue = {EpilogueKind::derivative, ActivationKind::gelu_tanh, any(2), 256},
                   x.tb = Transpose::no)},
    {matmul_wgmma_derivative_cuda_fits, "the workspace is too small for the column sums of every 64 rows",
     product, WITH(x.epilogue = {EpilogueKind::derivative, ActivationKind::gelu_tanh, any(), 256,
                                 reinterpret_cast<float*>(any())},
                   x.tb = Transpose::no, x.m = k1 << 20)},
    {matmul_fp16x3_cuda_fits, "multiplies f32 only", product, WITH()},
    {matmul_fp16x3_cuda_fits, "a size exceeds 2^28", product_f32, WITH(x.n = k1 << 28)},
    {matmul_fp16x3_cuda_fits, "the workspace has no room for parts of 256 values of k, 4 bytes an element of A and B",
     product_f32, WITH(ctx.workspace_bytes = 1000)},
    {matmul_tf32_cuda_fits, "multiplies f32 with allow_tf32 only", product_f32, WITH()},
    {matmul_tf32_cuda_fits, "m or n exceeds 2^22, or k 2^28", product_f32, WITH(x.allow_tf32 = true, x.m = k1 << 22)},
    {matmul_tf32_cuda_fits, "the workspace has no room for a transposed copy",
     product_f32, WITH(x.allow_tf32 = true, x.tb = Transpose::no, ctx.workspace_bytes = 0)},
#endif
};
// clang-format on

#if SATURATE_WITH_CUDA
void provoke_plans(Reasons& reasons) {
  const Context ctx{.device = kGpu, .workspace_bytes = 0, .capability = &kHopper};
  const auto refuses = [&](const char* reason, const MatmulArgs& x, const WgmmaPlan& plan) {
    reasons.expect(reason, wgmma_plan_fits(ctx, x, plan), "wgmma");
  };
  MatmulArgs x = product();
  refuses("no such configuration", x, {-1, 1, 1});
  refuses("only weight gradients are split", x, {0, 2, 1});
  MatmulArgs weight = x;
  weight.ta = Transpose::yes, weight.tb = Transpose::no, weight.d_type = DType::f32;
  weight.n = 255;
  int shape = 0;
  while (!wgmma_plan_fits(ctx, weight, {shape, 1, 4})) ++shape;  // built for weight gradients
  refuses("splits need an even n", weight, {shape, 2, 4});
  weight.n = 256;
  refuses("the workspace has no room for the partial sums", weight, {shape, 2, 4});
  Context large = ctx;
  large.workspace_bytes = size_t{1} << 30;
  reasons.expect("too little to split", wgmma_plan_fits(large, weight, {shape, 2, 4}), "wgmma");
  // A shape that not every layout has.
  for (int s = 0; s < 64; ++s)
    for (const MatmulArgs& y : {x, weight})
      if (const Fit f = wgmma_plan_fits(ctx, y, {s, 1, 4}); !f) {
        reasons.expect("not built for this layout", f, "wgmma");
        s = 64;
        break;
      }
}
#endif

void provoke_products(Reasons& reasons) {
  for (const ProductRow& row : kProducts) {
    Capability gpu = kHopper;
    Context ctx{.device = kGpu, .workspace_bytes = 0, .capability = &gpu};
    MatmulArgs x = row.start();
    row.change(x, ctx, gpu);
    reasons.expect(row.reason, row.fits(ctx, x), "a product");
  }
  // What a tuned table names, planned on the CPU.
  const auto tuned = [&](const char* reason, const char* impl) {
    auto table = std::make_shared<GemmTable>();
    table->set(gemm_key(product_f32()), {impl, "", 1, 1});
    KernelOptions options;
    options.gemm_table = table;
    const MatmulPlan plan = plan_matmul({}, options, product_f32());
    ASSERT_FALSE(plan.refused.empty()) << impl;
    reasons.expect(reason, Fit{plan.refused.front().reason.c_str()}, impl);
  };
  tuned("this build has no such implementation", "no such thing");
#if SATURATE_WITH_CUDA
  tuned("it is for another device", "matmul_mma_cuda");
  const Context ctx{.device = kGpu, .workspace_bytes = size_t{1} << 30, .capability = &kHopper};
  MatmulArgs small = product_f32();
  reasons.expect("too small to pay for the cutting", matmul_fp16x3_cuda_pays(ctx, small), "fp16x3");
  small.allow_tf32 = true;
  reasons.expect("TF32 is allowed, which is faster", matmul_fp16x3_cuda_pays(ctx, small), "fp16x3");
  provoke_plans(reasons);
  const GroupedGemmArgs group{.a = any(),
                              .b = any(),
                              .d = any(),
                              .groups = 4,
                              .rows = 256,
                              .n = 64,
                              .k = 64,
                              .dtype = DType::bf16};
  const auto grouped = [&](const char* reason, auto fits, auto change) {
    GroupedGemmArgs x = group;
    change(x);
    reasons.expect(reason, fits(ctx, x), "grouped");
  };
  using G = GroupedGemmArgs;
  const auto wgmma = grouped_gemm_wgmma_cuda_fits;
  grouped("multiplies bf16 and f16 only", wgmma, [](G& x) { x.dtype = DType::f32; });
  grouped("n or k is not a multiple of 8", wgmma, [](G& x) { x.k = 60; });
  grouped("a, b or d is not aligned to 16 bytes", wgmma, [](G& x) { x.b = any(2); });
  grouped("beta is neither 0 nor 1", wgmma, [](G& x) { x.beta = 0.5f; });
  grouped("more than 1024 groups", wgmma, [](G& x) { x.groups = 1025; });
  grouped("no rows", wgmma, [](G& x) { x.rows = 0; });
  grouped("a size exceeds 2^30", wgmma, [](G& x) { x.rows = k1 << 30; });
  grouped("2^31 or more tiles", wgmma, [](G& x) { x.rows = k1 << 29, x.n = k1 << 29; });
  const auto plain = grouped_gemm_plain_cuda_fits;
  grouped("n or k exceeds 65535 tiles of 64", plain, [](G& x) { x.n = 65536 * 64; });
  grouped("2^31 or more tiles of rows", plain, [](G& x) { x.groups = k1 << 31; });
#endif
}

// --- the rest

template <class Args>
void other(Reasons& reasons, const char* reason, const char* impl, void (*change)(Args&),
           const Capability& gpu = kHopper) {
  Args args;
  if constexpr (requires { args.forward; })
    args.forward.dtype = DType::bf16;
  else
    args.dtype = DType::bf16;
  change(args);
  const bool cpu = std::string(impl).ends_with("_cpu");
  const Context ctx{
      .device = cpu ? kCpu : kGpu, .workspace_bytes = kWorkspaceBytes, .capability = &gpu};
  reasons.expect(reason, refusal(impls_of<Args>(), impl, ctx, args), impl);
}

void provoke_packed(Reasons& r) {
  const auto expect = [&r](const char* reason, const char* impl, PackedType type,
                           int64_t inputs = 64) {
    PackedLinearArgs args;
    args.w.type = type;
    args.w.k = inputs;
    args.level = CpuLevel::plain;
    const auto fit = refusal(impls_of<PackedLinearArgs>(), impl, Context{.device = kCpu}, args);
    r.expect(reason, fit, impl);
  };
  expect("the weights are not f32", "packed_f32_plain_cpu", PackedType::s8);
  expect("the weights are not s8", "packed_s8_plain_cpu", PackedType::f32);
  expect("no AVX2 here, or SATURATE_CPU excludes it", "packed_f32_avx2_cpu", PackedType::f32);
  expect("no AVX-512 here, or SATURATE_CPU excludes it", "packed_f32_avx512_cpu", PackedType::f32);
  expect("no VNNI here, or SATURATE_CPU excludes it", "packed_s8_vnni_cpu", PackedType::s8);
  expect("the weights are not bf16", "packed_bf16_plain_cpu", PackedType::f32);
  expect("no AVX512-BF16 here, or SATURATE_CPU excludes it", "packed_bf16_dot_cpu",
         PackedType::bf16);
  expect("k is no multiple of 32 (a tile)", "packed_bf16_amx_cpu", PackedType::bf16, 65);
  expect("no AMX here, or SATURATE_CPU excludes it", "packed_s8_amx_cpu", PackedType::s8);
  expect("k is no multiple of 64 (a tile)", "packed_s8_amx_cpu", PackedType::s8, 65);
}

#if SATURATE_WITH_CUDA
void provoke_block_matmul(Reasons& r) {
  const auto expect = [&](const char* reason, BlockFormat a, BlockFormat b, int64_t k,
                          DType type = DType::bf16, int major = 10) {
    BlockMatmulArgs args{.k = k, .dtype = type};
    args.a.format = a, args.b.format = b;
    const Capability gpu{.major = major};
    const Context ctx{.device = kGpu, .capability = &gpu};
    const char* const impl = "block_matmul_cuda";
    r.expect(reason, refusal(impls_of<BlockMatmulArgs>(), impl, ctx, args), impl);
  };
  using enum BlockFormat;
  expect("on GPUs block-scaled products have results in bf16", mxfp8_e4m3, mxfp8_e4m3, 32,
         DType::f32);
  expect("cuBLASLt multiplies 4-bit codes in blocks of 16 alone (nvfp4)", mxfp4, mxfp4, 32);
  expect("cuBLASLt does not multiply e5m2 with e5m2", mxfp8_e5m2, mxfp8_e5m2, 32);
  expect("k is no multiple of 32 (rows of 4-bit codes begin at multiples of 16 bytes)", nvfp4,
         nvfp4, 48);
  expect("block-scaled products need compute capability 10.0 (Blackwell) or newer", nvfp4, nvfp4,
         64, DType::bf16, 9);
}
#endif

void provoke_others(Reasons& r) {
  provoke_packed(r);
  const auto nothing = [](auto&) {};
  other<NormForwardArgs>(r, "the CPU computes in f32 and f64 only; use fp32 precision there",
                         "norm_forward_cpu", nothing);
  other<Conv2dArgs>(r, "the CPU convolves f32 and f64 only", "conv2d_forward_cpu", nothing);
  r.expect("products of this device have no such epilogue",
           linear_cross_entropy_pays({.device = kCpu}, {}), "linear_cross_entropy_cpu");
  other<Fp8QuantizeArgs>(r, "on the CPU 8-bit operands are rounded from f32", "fp8_quantize_cpu",
                         nothing);
  other<Fp8MatmulArgs>(r, "on the CPU 8-bit products have results in f32", "fp8_matmul_cpu",
                       nothing);
  other<BlockQuantizeArgs>(r, "on the CPU blocks are rounded from f32", "block_quantize_cpu",
                           nothing);
  other<BlockMatmulArgs>(r, "on the CPU block-scaled products have results in f32",
                         "block_matmul_cpu", nothing);
#if SATURATE_WITH_CUDA
  other<NormForwardArgs>(r, "f64 is for gradient checks on the CPU only", "norm_forward_cuda",
                         [](auto& a) { a.dtype = DType::f64; });
  other<RelativeBiasArgs>(r, "the bias is added to scores, which are f32", "relative_bias_cuda",
                          nothing);
  other<CompressArgs>(r, "a GPU makes these sums in f32", "compress_cuda", nothing);
  other<NormForwardArgs>(r, "cols > 2^20 (32-bit column arithmetic)", "norm_forward_cuda",
                         [](auto& a) { a.cols = (k1 << 20) + 1; });
  other<EmbeddingArgs>(r, "2^31 or more rows (one block a row)", "embedding_forward_cuda",
                       [](auto& a) { a.rows = k1 << 31; });
  other<CrossEntropyArgs>(r, "2^31 or more rows (one block a row)", "cross_entropy_cuda",
                          [](auto& a) { a.rows = k1 << 31; });
  other<CrossEntropyArgs>(r, "2^28 or more columns (32-bit offsets within a row)",
                          "cross_entropy_cuda", [](auto& a) { a.ld = k1 << 28; });
  const char* const loss = "linear_cross_entropy_wgmma_cuda";
  const Context hopper{.device = kGpu, .capability = &kHopper};
  LinearCrossEntropyArgs output{
      .rows = 2048, .width = 512, .vocab = 32000, .ld = 32000, .dtype = DType::bf16};
  r.expect("tiles of x's gradient leave more than a quarter of the multiprocessors idle",
           linear_cross_entropy_pays(hopper, output), loss);
  output.rows = 25088;  // three rounds of 132 tiles but four
  EXPECT_TRUE(linear_cross_entropy_pays(hopper, output));
  other<LinearCrossEntropyArgs>(r, "exponentials need the range of bf16", loss,
                                [](auto& a) { a.dtype = DType::f16; });
  other<LinearCrossEntropyArgs>(r, "width or ld is not a multiple of 8", loss,
                                [](auto& a) { a.width = 4; });
  other<LinearCrossEntropyArgs>(r, "2^30 or more rows, or 2^27 or more classes", loss,
                                [](auto& a) { a.ld = k1 << 27; });
  other<BeamStepArgs>(r, "2^30 or more columns (32-bit offsets within a row)", "beam_step_cuda",
                      [](auto& a) { a.ld = k1 << 30; });
  other<Fp8MatmulArgs>(r, "on GPUs 8-bit products have results in bf16 or f32", "fp8_matmul_cuda",
                       [](auto& a) { a.dtype = DType::f16; });
  static constexpr float bias = 0;
  other<Fp8MatmulArgs>(r, "on GPUs 8-bit products with results in f32 add no bias",
                       "fp8_matmul_cuda", [](auto& a) { a.dtype = DType::f32, a.bias = &bias; });
  static constexpr Capability ampere{.major = 8, .minor = 6};
  other<Fp8MatmulArgs>(r, "8-bit products need compute capability 8.9 (Ada, Hopper) or newer",
                       "fp8_matmul_cuda", nothing, ampere);
  provoke_block_matmul(r);
  static constexpr TokenPhrases phrases;
  other<BeamStepArgs>(r, "phrases that translations must hold", "beam_step_cuda",
                      [](auto& a) { a.phrases = &phrases; });
  static constexpr TokenColumns columns;
  other<BeamStepArgs>(r, "columns for some tokens alone (a shortlist)", "beam_step_cuda",
                      [](auto& a) { a.columns = &columns; });
  other<MeanLogitsArgs>(r, "columns for some tokens alone (a shortlist)", "mean_logits_cuda",
                        [](auto& a) { a.columns = &columns; });
  other<MeanLogitsArgs>(r, "2^30 or more columns (32-bit offsets within a row)", "mean_logits_cuda",
                        [](auto& a) { a.ld = k1 << 30; });
  other<MeanLogitsArgs>(r, "2^32 or more elements (32-bit index arithmetic)", "mean_logits_cuda",
                        [](auto& a) { a.sentences = k1 << 31, a.beam = 2; });
  other<BeamStepArgs>(r, "2^32 or more elements (32-bit index arithmetic)", "beam_step_cuda",
                      [](auto& a) { a.sentences = k1 << 31, a.beam = 2; });
  other<BeamStepArgs>(r, "2^24 or more columns (three digits of an index)", "beam_step_cuda",
                      [](auto& a) { a.ld = k1 << 24, a.draws = true; });
  other<SampleStepArgs>(r, "2^24 or more columns (three digits of an index)", "sample_step_cuda",
                        [](auto& a) { a.ld = k1 << 24; });
  other<CachedAttentionArgs>(r, "head_size > 256 (eight channels a lane)", "cached_attention_cuda",
                             [](auto& a) { a.head_size = 257; });
  constexpr const char* kWide = "cached_attention_avx512_cpu";
  other<CachedAttentionArgs>(r, "dtype is not f32", kWide, [](auto& a) { a.head_size = 64; });
  other<CachedAttentionArgs>(r, "head_size is no multiple of 8", kWide,
                             [](auto& a) { a.dtype = DType::f32, a.head_size = 20; });
  other<CachedAttentionArgs>(r, "no AVX-512 here, or SATURATE_CPU excludes it", kWide,
                             [](auto& a) { a.dtype = DType::f32, a.head_size = 64; });
  static const auto as_mma = [](CachedAttentionArgs& a) {
    a.dtype = DType::bf16, a.head_size = 64;
  };
  constexpr const char* kMma = "cached_attention_mma_cuda";
  other<CachedAttentionArgs>(r, "dtype is neither bf16 nor f16", kMma,
                             [](auto& a) { a.dtype = DType::f32, a.head_size = 64; });
  other<CachedAttentionArgs>(r, "head_size is neither 64 nor 128", kMma,
                             [](auto& a) { as_mma(a), a.head_size = 96; });
  other<CachedAttentionArgs>(r, "the GPU is older than compute capability 8.0", kMma,
                             [](auto& a) { as_mma(a); }, {.major = 7, .minor = 5});
  other<CachedAttentionArgs>(r, "qkv, cache or o is not aligned to 16 bytes", kMma,
                             [](auto& a) { as_mma(a), a.qkv = any(8); });
  other<CachedAttentionArgs>(r, "a shared prefix is read once for all beams", kMma, [](auto& a) {
    static constexpr int32_t kShared = 0;
    as_mma(a), a.rows = a.heads = 1;
    a.shared_positions = &kShared, a.max_positions = 1024;
  });
  other<CachedAttentionArgs>(
      r, "others are faster with short histories and a query for each key head", kMma,
      [](auto& a) { as_mma(a), a.heads = a.kv_heads = 8, a.max_positions = 256; });
  other<CachedAttentionArgs>(r, "2^31 or more rows and heads (grid)", kMma, [](auto& a) {
    as_mma(a), a.rows = k1 << 30, a.heads = a.kv_heads = 4;
  });
  other<MemoryWeightsArgs>(r, "max_positions > 6000 (two numbers each in shared memory)",
                           "memory_weights_cuda", [](auto& a) { a.max_positions = 6001; });
  other<CachedAttentionArgs>(r, "more than 65535 heads (grid)", "cached_attention_cuda",
                             [](auto& a) { a.heads = 65536; });
  other<Conv2dArgs>(r, "bf16 needs compute capability 8.0", "conv2d_forward_cuda", nothing,
                    {.major = 7, .minor = 5});
  other<Conv2dArgs>(r, "f16 needs compute capability 7.5", "conv2d_forward_cuda",
                    [](auto& a) { a.dtype = DType::f16; }, {.major = 7});
  other<Conv2dArgs>(
      r, "pixels, taps times channels, or a padded side is above 2^29 (32-bit positions)",
      "conv2d_forward_cuda", [](auto& a) { a.batch = k1 << 29, a.height = a.width = 2; });
  other<Conv2dArgs>(r, "taps times channels is above 65535 tiles (second grid dimension)",
                    "conv2d_forward_cuda", [](auto& a) { a.channels = 65536 * 64; });
  other<Conv2dBackwardArgs>(r, "the workspace is smaller than the weight gradient in fp32",
                            "conv2d_backward_cuda", [](auto& b) {
                              Conv2dArgs& a = b.forward;
                              a.batch = a.height = a.width = 8, a.channels = a.filters = 4096;
                              b.d_w = any();
                            });
#endif
}

// String literals inside the functions that return a Fit, in the sources of the kernels.
std::set<std::string> reasons_in_sources() {
  std::set<std::string> found;
  for (const auto& entry :
       std::filesystem::recursive_directory_iterator(SATURATE_SOURCE_DIR "/src/kernels")) {
    const std::string name = entry.path().filename().string();
    const std::string type = entry.path().extension().string();
    if ((type != ".cpp" && type != ".h" && type != ".cu") ||
        name.find("_test.") != std::string::npos)
      continue;
    std::stringstream stream;
    stream << std::ifstream(entry.path()).rdbuf();
    const std::string text = stream.str();
    for (size_t at = text.find("Fit "); at != std::string::npos; at = text.find("Fit ", at + 1)) {
      size_t i = at + 4;
      while (i < text.size() &&
             (std::isalnum(static_cast<unsigned char>(text[i])) || text[i] == '_'))
        ++i;
      if (i == at + 4 || i >= text.size() || text[i] != '(') continue;
      const size_t open = text.find_first_of("{;", i);
      if (open == std::string::npos || text[open] == ';') continue;  // a declaration
      int depth = 1;
      bool follows = false;  // a literal right after a literal goes on
      std::string literal;
      for (i = open + 1; i < text.size() && depth > 0; ++i) {
        if (text[i] == '"') {
          const size_t end = text.find('"', i + 1);
          literal = (follows ? literal : std::string()) + text.substr(i + 1, end - i - 1);
          i = end;
          follows = true;
        } else if (!std::isspace(static_cast<unsigned char>(text[i]))) {
          if (follows) found.insert(literal);
          follows = false;
          depth += text[i] == '{' ? 1 : text[i] == '}' ? -1 : 0;
        }
      }
    }
  }
  return found;
}

TEST(Reasons, EveryRefusalIsProvoked) {
  Reasons reasons;
  provoke_attention(reasons);
  provoke_products(reasons);
  provoke_others(reasons);
  const std::set<std::string> written = reasons_in_sources();
#if SATURATE_WITH_CUDA
  EXPECT_GT(written.size(), 120u) << "the sources were not read";
  // Not of a build with CUTLASS.
  const std::set<std::string> elsewhere{
      "not built: needs CUDA and the headers of CUTLASS (cmake -DSATURATE_CUTLASS=FOLDER)"};
  for (const std::string& reason : written)
    EXPECT_TRUE(reasons.seen().contains(reason) || elsewhere.contains(reason))
        << "no test provokes: " << reason;
#endif
  for (const std::string& reason : reasons.seen())
    EXPECT_TRUE(written.contains(reason)) << "not in the sources: " << reason;
}

}  // namespace
}  // namespace saturate::kernels
