// SPDX-License-Identifier: Apache-2.0
// What matmul.cpp chooses from. All of these take arguments that matmul() has checked: m, n > 0 and
// c, ldc filled in.
#pragma once
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "kernels/dispatch.h"
#include "kernels/gemm/matmul.h"

namespace saturate::kernels {

// The ordered list: without a tuned table the first that fits runs. Errors: invalid_argument when
// SATURATE_MATMUL names none of it.
std::span<const Impl<MatmulArgs>> matmul_impls();

Fit matmul_blas_cpu_fits(const Context& ctx, const MatmulArgs& args) noexcept;
void matmul_blas_cpu(const Context& ctx, const MatmulArgs& args);

Fit matmul_cublaslt_cuda_fits(const Context& ctx, const MatmulArgs& args) noexcept;
void matmul_cublaslt_cuda(const Context& ctx, const MatmulArgs& args);
void matmul_tune_cublaslt_cuda(const Context& ctx, const MatmulArgs& args);

// cuBLASLt's algorithms as configurations (tune/configured.h): up to `wanted` (at most 64) that its
// heuristics offer, best estimate first; "" is the first of them. Errors: unsupported.
std::vector<std::string> matmul_cublaslt_configurations(const Context& ctx, const MatmulArgs& args,
                                                        int wanted);
Fit matmul_cublaslt_ready(const Context& ctx, const MatmulArgs& args, const std::string& config);
void matmul_cublaslt_configured(const Context& ctx, const MatmulArgs& args,
                                const std::string& config);

// mma.sync tiles of bf16 or f16: all layouts, batches, epilogues and alignments.
Fit matmul_mma_cuda_fits(const Context& ctx, const MatmulArgs& args) noexcept;
void matmul_mma_cuda(const Context& ctx, const MatmulArgs& args);

// Calls body(args of one product) for each product of the batch, in order.
template <class Body>
void each_product(const MatmulArgs& args, const Body& body) {
  const auto at = [](auto* data, int64_t elements, DType type) {
    using Byte = std::conditional_t<std::is_const_v<std::remove_pointer_t<decltype(data)>>,
                                    const char, char>;
    return data == nullptr
               ? data
               : static_cast<decltype(data)>(static_cast<Byte*>(data) +
                                             elements * static_cast<int64_t>(size_of(type)));
  };
  for (int64_t i = 0; i < args.batch; ++i) {
    MatmulArgs one = args;
    one.batch = 1;
    one.a = at(args.a, i * args.stride_a, args.ab_type);
    one.b = at(args.b, i * args.stride_b, args.ab_type);
    one.c = at(args.c, i * args.stride_c, args.d_type);
    one.d = at(args.d, i * args.stride_d, args.d_type);
    body(one);
  }
}

// D[m][n] = beta * C[m][n] + bias[n]: the whole answer when k == 0, and the start of one where the
// library cannot add the bias itself.
void matmul_start_cuda(const Context& ctx, const MatmulArgs& args);

}  // namespace saturate::kernels
