// SPDX-License-Identifier: Apache-2.0
// What matmul_plan.cpp chooses from. All of these take arguments that it has checked: m, n > 0 and
// c, ldc filled in.
#pragma once
#include <array>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "kernels/dispatch.h"
#include "kernels/gemm/matmul.h"

namespace saturate::kernels {

// A problem made ready: what runs it, and the workspace that takes.
struct PreparedMatmul {
  std::function<void(const Context&, const MatmulArgs&)> launch;
  size_t workspace_bytes = 0;
};

struct MatmulImpl {
  const char* name;  // as it appears in traces and tables
  DeviceKind device;
  Fit (*fits)(const Context&, const MatmulArgs&) noexcept;
  // Of a problem that fits; results are the same for every workspace of at least what it takes.
  PreparedMatmul (*prepare)(const Context&, const MatmulArgs&);
  // Whether its epilogue is worth more than the plain product and kernels behind it; null: no.
  bool (*epilogue_pays)(const Context&, const MatmulArgs&) noexcept = nullptr;
};

// The ordered list: without a tuned table the first that fits runs.
std::span<const MatmulImpl> matmul_impls() noexcept;

// Everything a choice for a problem on ctx may depend on.
using MatmulProblemKey = std::array<int64_t, 28>;
MatmulProblemKey matmul_problem_key(const Context& ctx, const MatmulArgs& args) noexcept;

// Largest power of two up to 256 that divides the address.
uint32_t pointer_alignment(const void* p) noexcept;

Fit matmul_blas_cpu_fits(const Context& ctx, const MatmulArgs& args) noexcept;
void matmul_blas_cpu(const Context& ctx, const MatmulArgs& args);

Fit matmul_cublaslt_cuda_fits(const Context& ctx, const MatmulArgs& args) noexcept;
void matmul_cublaslt_cuda(const Context& ctx, const MatmulArgs& args);
// Its library and the device's handle. The device is the current one. Errors: unsupported; device.
void matmul_cublaslt_load(Device device);

// cuBLASLt's algorithms as configurations (tune/configured.h): up to `wanted` (at most 64) that its
// heuristics offer, best estimate first; "" is the first of them. Errors: unsupported.
std::vector<std::string> matmul_cublaslt_configurations(const Context& ctx, const MatmulArgs& args,
                                                        int wanted);
Fit matmul_cublaslt_ready(const Context& ctx, const MatmulArgs& args, const std::string& config);
void matmul_cublaslt_configured(const Context& ctx, const MatmulArgs& args,
                                const std::string& config);
PreparedMatmul matmul_cublaslt_prepare(const Context& ctx, const MatmulArgs& args,
                                       const std::string& config);

// The configuration that is fastest of the first eight, measured on this very problem; "" where the
// first is within 2% of it. d ends with meaningless values. Synchronises ctx.stream.
// Errors    invalid_argument while the stream is captured; unsupported.
std::string matmul_cublaslt_fastest(const Context& ctx, const MatmulArgs& args);

// mma.sync tiles of bf16 or f16: all layouts, batches, epilogues and alignments.
Fit matmul_mma_cuda_fits(const Context& ctx, const MatmulArgs& args) noexcept;
void matmul_mma_cuda(const Context& ctx, const MatmulArgs& args);
size_t matmul_mma_workspace(const Context& ctx, const MatmulArgs& args) noexcept;

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
