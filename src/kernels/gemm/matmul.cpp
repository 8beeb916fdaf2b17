// SPDX-License-Identifier: Apache-2.0
#include "kernels/gemm/matmul.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <string_view>

#include "kernels/dispatch.h"
#include "kernels/gemm/matmul_impl.h"
#include "kernels/gemm/tune/configured.h"
#include "kernels/gemm/tune/table.h"
#include "kernels/gemm/wgmma/matmul_bf16x6.h"
#include "kernels/gemm/wgmma/matmul_tf32.h"
#include "kernels/gemm/wgmma/matmul_wgmma.h"
#include "kernels/gemm/wgmma/matmul_wgmma_activation.h"

namespace saturate::kernels {
namespace {

// clang-format off
constexpr Impl<MatmulArgs> kImpls[] = {
    SAT_CUDA_IMPL({"matmul_bf16x6_cuda", DeviceKind::cuda, matmul_bf16x6_cuda_pays, matmul_bf16x6_cuda})
    SAT_CUDA_IMPL({"matmul_cublaslt_cuda", DeviceKind::cuda, matmul_cublaslt_cuda_fits, matmul_cublaslt_cuda})
    SAT_CUDA_IMPL({"matmul_wgmma_cuda", DeviceKind::cuda, matmul_wgmma_cuda_fits, matmul_wgmma_cuda})
    SAT_CUDA_IMPL({"matmul_tf32_cuda", DeviceKind::cuda, matmul_tf32_cuda_fits, matmul_tf32_cuda})
    SAT_CUDA_IMPL({"matmul_wgmma_activation_cuda", DeviceKind::cuda, matmul_wgmma_activation_cuda_fits, matmul_wgmma_activation_cuda})
    SAT_CUDA_IMPL({"matmul_mma_cuda", DeviceKind::cuda, matmul_mma_cuda_fits, matmul_mma_cuda})
    {"matmul_blas_cpu", DeviceKind::cpu, matmul_blas_cpu_fits, matmul_blas_cpu},
};
// clang-format on

// The list, or the one implementation that SATURATE_MATMUL names. Errors: invalid_argument.
std::span<const Impl<MatmulArgs>> impls() {
  static const std::span<const Impl<MatmulArgs>> chosen = [] {
    const std::span<const Impl<MatmulArgs>> all(kImpls);
    const char* wanted = std::getenv("SATURATE_MATMUL");
    if (wanted == nullptr) return all;
    std::string names;
    for (size_t i = 0; i < all.size(); ++i) {
      if (std::string_view(all[i].name) == wanted) return all.subspan(i, 1);
      names += (i == 0 ? "" : ", ") + std::string(all[i].name);
    }
    throw Error(Errc::invalid_argument, "matmul",
                fmt::format("SATURATE_MATMUL is {}; it must be one of {}", wanted, names));
  }();
  return chosen;
}

void require(bool ok, const std::string& what) {
  if (!ok) throw Error(Errc::invalid_argument, "matmul", what);
}

void require_matrix(const char* name, const void* data, int64_t rows, int64_t cols, int64_t ld) {
  if (rows == 0 || cols == 0) return;
  require(ld >= cols,
          fmt::format("{} is stored as ({}, {}) with leading dimension {}; it must be at least {}",
                      name, rows, cols, ld, cols));
  require(data != nullptr, fmt::format("{} is ({}, {}) but its pointer is null", name, rows, cols));
}

// The problem with c and ldc filled in.
MatmulArgs checked(const MatmulArgs& args) {
  MatmulArgs x = args;
  require(x.m >= 0 && x.n >= 0 && x.k >= 0,
          fmt::format("sizes m {}, n {}, k {} must not be negative", x.m, x.n, x.k));
  const bool narrow = x.ab_type == DType::bf16 || x.ab_type == DType::f16;
  require(x.ab_type != DType::i32 && (x.d_type == x.ab_type || (narrow && x.d_type == DType::f32)),
          fmt::format(
              "a and b are {} and d is {}; d must be of the same floating-point type, or f32 for "
              "bf16 and f16",
              name_of(x.ab_type), name_of(x.d_type)));
  require(x.batch >= 0, fmt::format("batch {} must not be negative", x.batch));
  if (x.m == 0 || x.n == 0 || x.batch == 0) return x;
  if (x.c == nullptr) {
    x.c = x.d;
    x.ldc = x.ldd;
    x.stride_c = x.stride_d;
  }
  const bool ta = x.ta == Transpose::yes, tb = x.tb == Transpose::yes;
  const int64_t product_n = x.epilogue.product_columns(x.n);
  const int64_t output_n = x.epilogue.output_columns(x.n);
  require_matrix("a", x.a, ta ? x.k : x.m, ta ? x.m : x.k, x.lda);
  require_matrix("b", x.b, tb ? product_n : x.k, tb ? x.k : product_n, x.ldb);
  require_matrix("d", x.d, x.m, output_n, x.ldd);
  if (x.beta != 0.0f)
    require_matrix("c", x.c, x.m, output_n, x.ldc);
  else
    x.c = x.d, x.ldc = x.ldd, x.stride_c = x.stride_d;
  if (x.epilogue.writes_aux() || x.epilogue.reads_aux())
    require_matrix("aux", x.epilogue.aux, x.m, x.epilogue.aux_columns(x.n), x.epilogue.ld_aux);
  require(x.batch <= 1 || (x.epilogue.aux == nullptr && x.epilogue.column_sum == nullptr),
          fmt::format("a batch of {} takes neither aux nor column_sum; loop over it", x.batch));
  require(x.c != x.d || x.ldc == x.ldd,
          fmt::format("c is d but their leading dimensions {} and {} differ", x.ldc, x.ldd));
  return x;
}

// Runs what the tuned table says; false when it says nothing for this problem, or what it says
// cannot run here (which SATURATE_VERBOSE=dispatch shows).
bool run_tuned(const Context& ctx, const MatmulArgs& x) {
  if (x.k == 0 || x.batch != 1 || !x.epilogue.is_plain()) return false;  // keys do not tell these
  const bool all = impls().size() == std::size(kImpls);  // SATURATE_MATMUL names none
  const GemmTable* const table = all ? gemm_table_in_use(ctx.device) : nullptr;
  const GemmChoice* const choice = table != nullptr ? table->find(gemm_key(x)) : nullptr;
  if (choice == nullptr) {
    if (table != nullptr && dispatch_is_verbose())
      note_dispatch("matmul", text_of(gemm_key(x)), "tuned", "nothing measured");
    return false;
  }
  const ConfiguredImpl* const configured = find_configured(choice->impl);
  const Impl<MatmulArgs>* plain = nullptr;
  for (const Impl<MatmulArgs>& impl : impls()) {
    if (choice->impl == impl.name) plain = &impl;
  }
  Fit fit{"this build has no such implementation"};
  if (configured != nullptr && !(choice->config.empty() && plain != nullptr)) {
    fit = configured->fits(ctx, x);
    if (fit) fit = configured->ready(ctx, x, choice->config);
  } else if (plain != nullptr) {
    fit = plain->fits(ctx, x);
  }
  if (dispatch_is_verbose()) {
    const std::string what = "tuned " + text_of(gemm_key(x)) + ": " + choice->impl +
                             (choice->config.empty() ? "" : " " + choice->config);
    note_dispatch("matmul", {}, what.c_str(), fit.reason);
  }
  if (!fit) return false;
  if (configured != nullptr && !(choice->config.empty() && plain != nullptr)) {
    configured->run(ctx, x, choice->config);
  } else {
    plain->launch(ctx, x);
  }
  return true;
}

}  // namespace

std::span<const Impl<MatmulArgs>> matmul_impls() { return impls(); }

size_t matmul_workspace_bytes(Device device, DType type) {
  if (!device.is_cuda()) return 0;
  const bool in_parts = type == DType::f32 && device_info(device).compute_major == 9;
  return in_parts ? size_t{512} << 20 : kWorkspaceBytes;
}

void matmul(const Context& ctx, const MatmulArgs& args) {
  const MatmulArgs problem = checked(args);
  if (problem.m == 0 || problem.n == 0 || problem.batch == 0) return;
  if (run_tuned(ctx, problem)) return;
  dispatch("matmul", ctx, problem, impls());
}

void matmul_tune(const Context& ctx, const MatmulArgs& args) {
  const MatmulArgs problem = checked(args);
  if (problem.m == 0 || problem.n == 0 || problem.k == 0 || problem.batch == 0) return;
  const Impl<MatmulArgs>& impl = choose("matmul_tune", ctx, problem, impls());
#if SATURATE_WITH_CUDA
  if (impl.launch == matmul_cublaslt_cuda) matmul_tune_cublaslt_cuda(ctx, problem);
#else
  static_cast<void>(impl);
#endif
}

}  // namespace saturate::kernels
