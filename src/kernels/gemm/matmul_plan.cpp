// SPDX-License-Identifier: Apache-2.0
#include "kernels/gemm/matmul_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "kernels/dispatch.h"
#include "kernels/gemm/matmul_impl.h"
#include "kernels/gemm/tune/configured.h"
#include "kernels/gemm/tune/table.h"
#include "kernels/gemm/wgmma/matmul_fp16x3.h"

namespace saturate::kernels {
namespace {

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
  require(x.epilogue.activation != ActivationKind::identity,
          "an epilogue has no identity; take EpilogueKind::plain");
  if (x.epilogue.writes_aux() || x.epilogue.reads_aux())
    require_matrix("aux", x.epilogue.aux, x.m, x.epilogue.aux_columns(x.n), x.epilogue.ld_aux);
  require(x.batch <= 1 || (x.epilogue.aux == nullptr && x.epilogue.column_sum == nullptr),
          fmt::format("a batch of {} takes neither aux nor column_sum; loop over it", x.batch));
  require(!x.epilogue.slopes || x.epilogue.kind == EpilogueKind::activation ||
              x.epilogue.kind == EpilogueKind::derivative,
          "slopes are of an activation or a derivative");
  require(!x.epilogue.bits || (x.epilogue.activation == ActivationKind::relu &&
                               !x.epilogue.slopes && x.n % 64 == 0 &&
                               (x.epilogue.kind == EpilogueKind::activation ||
                                x.epilogue.kind == EpilogueKind::derivative)),
          "bits are of relu's activation or derivative, of a multiple of 64 columns");
  require(x.c != x.d || x.ldc == x.ldd,
          fmt::format("c is d but their leading dimensions {} and {} differ", x.ldc, x.ldd));
  return x;
}

bool is_empty(const MatmulArgs& x) noexcept { return x.m == 0 || x.n == 0 || x.batch == 0; }

// The list, or the one implementation that `only` names. Errors: invalid_argument.
std::span<const MatmulImpl> candidates(const std::string& only) {
  const std::span<const MatmulImpl> all = matmul_impls();
  if (only.empty()) return all;
  std::string names;
  for (size_t i = 0; i < all.size(); ++i) {
    if (only == all[i].name) return all.subspan(i, 1);
    names += (i == 0 ? "" : ", ") + std::string(all[i].name);
  }
  require(false, fmt::format("SATURATE_MATMUL is {}; it must be one of {}", only, names));
  return {};
}

// What the tuned table names for the problem; null when it says nothing.
const GemmChoice* tuned_choice(const GemmTable& table, const MatmulArgs& x) {
  if (x.k == 0 || x.batch != 1 || !x.epilogue.is_plain()) return nullptr;  // not part of keys
  return table.find(gemm_key(x));
}

// Makes what the table names ready. Refused where it cannot run here.
Fit prepare_tuned(const Context& ctx, const MatmulArgs& x, const GemmChoice& choice,
                  PreparedMatmul& prepared) {
  const std::span<const MatmulImpl> list = matmul_impls();
  const auto listed = std::find_if(list.begin(), list.end(),
                                   [&](const MatmulImpl& i) { return choice.impl == i.name; });
  const ConfiguredImpl* const configured = find_configured(choice.impl);
  if (configured != nullptr && !(choice.config.empty() && listed != list.end())) {
    Fit fit = configured->fits(ctx, x);
    if (fit) fit = configured->ready(ctx, x, choice.config);
    if (fit) prepared = configured->prepared(ctx, x, choice.config);
    return fit;
  }
  if (listed == list.end()) return {"this build has no such implementation"};
  const Fit fit =
      listed->device == ctx.device.kind ? listed->fits(ctx, x) : Fit{"it is for another device"};
  if (fit) prepared = listed->prepare(ctx, x);
  return fit;
}

void note(const MatmulPlan& plan, const std::string& problem) {
  for (const MatmulRefusal& r : plan.refused)
    note_dispatch("matmul", problem, r.implementation.c_str(), r.reason.c_str());
  if (plan.implementation.empty()) return;
  std::string chosen = plan.implementation;
  if (!plan.configuration.empty()) chosen += " " + plan.configuration;
  if (plan.workspace_bytes > 0)
    chosen += fmt::format(" ({} bytes of workspace)", plan.workspace_bytes);
  note_dispatch("matmul", problem, chosen.c_str(), nullptr);
}

std::string text_of_problem(const MatmulArgs& x) {
  return text_of(gemm_key(x)) + (x.batch != 1 ? fmt::format(" x {}", x.batch) : "") +
         (x.epilogue.is_plain() ? "" : " with epilogue");
}

}  // namespace

MatmulPlan plan_matmul(const Context& ctx, const KernelOptions& options,
                       const MatmulArgs& problem) {
  MatmulPlan plan;
  const MatmulArgs x = checked(problem);
  plan.problem_ = x;
  if (is_empty(x)) return plan;
  PreparedMatmul prepared;
  const bool consults = options.gemm_table != nullptr && options.matmul.empty();
  const GemmChoice* const choice = consults ? tuned_choice(*options.gemm_table, x) : nullptr;
  if (consults && choice == nullptr)
    plan.refused.push_back({"the tuned table", "holds nothing for this product"});
  if (choice != nullptr) {
    if (const Fit fit = prepare_tuned(ctx, x, *choice, prepared)) {
      plan.implementation = choice->impl;
      plan.configuration = choice->config;
    } else {
      plan.refused.push_back(
          {"tuned " + choice->impl + (choice->config.empty() ? "" : " " + choice->config),
           fit.reason});
    }
  }
  for (const MatmulImpl& impl : candidates(options.matmul)) {
    if (impl.device != ctx.device.kind || plan.implementation == impl.name) continue;
    const Fit fit = impl.fits(ctx, x);
    if (!fit) {
      plan.refused.push_back({impl.name, fit.reason});
    } else if (plan.implementation.empty()) {
      plan.implementation = impl.name;
      plan.epilogue_pays = impl.epilogue_pays != nullptr && impl.epilogue_pays(ctx, x);
      prepared = impl.prepare(ctx, x);
    } else {
      plan.refused.push_back(
          {impl.name,
           "would run, but " + plan.implementation +
               (plan.configuration.empty() ? " comes before it" : " was measured faster")});
    }
  }
  plan.launch_ = std::move(prepared.launch);
  plan.workspace_bytes = prepared.workspace_bytes;
  if (dispatch_is_verbose()) note(plan, text_of_problem(x));
  return plan;
}

void MatmulPlan::run(const Context& ctx, const MatmulArgs& args) const {
  const MatmulArgs x = checked(args);
  const MatmulArgs& p = problem_;
  require(x.m == p.m && x.n == p.n && x.k == p.k && x.batch == p.batch && x.ab_type == p.ab_type &&
              x.d_type == p.d_type && x.ta == p.ta && x.tb == p.tb && x.lda == p.lda &&
              x.ldb == p.ldb && x.ldd == p.ldd && (x.beta == 0.0f) == (p.beta == 0.0f) &&
              (x.bias == nullptr) == (p.bias == nullptr) && x.allow_tf32 == p.allow_tf32 &&
              x.allow_bf16 == p.allow_bf16,
          fmt::format("the plan is for {} and not for {}; plan it anew", text_of_problem(p),
                      text_of_problem(x)));
  if (is_empty(x)) return;
  if (!launch_) {
    std::string reasons;
    for (const MatmulRefusal& r : refused)
      reasons += (reasons.empty() ? "" : "; ") + r.implementation + ": " + r.reason;
    throw Error(Errc::unsupported, "matmul",
                fmt::format("no implementation fits on this device ({})",
                            reasons.empty() ? "none is built for it" : reasons));
  }
  require(
      ctx.workspace_bytes >= workspace_bytes,
      fmt::format("{} takes {} bytes of workspace and the context has {}; give it what the plan "
                  "states",
                  implementation, workspace_bytes, ctx.workspace_bytes));
  Context own = ctx;
  own.workspace_bytes = workspace_bytes;
  launch_(own, x);
}

void matmul(const Context& ctx, const MatmulArgs& args) {
  plan_matmul(ctx, {}, args).run(ctx, args);
}

size_t matmul_workspace_bytes(Device device, DType type) {
  if (!device.is_cuda()) return 0;
  const bool in_parts = type == DType::f32 && device_info(device).compute_major == 9;
  return in_parts ? size_t{512} << 20 : kWorkspaceBytes;
}

void load_matmul_library(Device device) {
#if SATURATE_WITH_CUDA
  if (!device.is_cuda()) return;
  use_device(device);
  matmul_cublaslt_load(device);
#else
  static_cast<void>(device);
#endif
}

size_t matmul_workspace_limit(Device device, const MatmulArgs& x) {
  const size_t most = matmul_workspace_bytes(device, x.ab_type);
#if SATURATE_WITH_CUDA
  if (most > kWorkspaceBytes) return std::clamp(matmul_fp16x3_workspace(x), kWorkspaceBytes, most);
#else
  static_cast<void>(x);
#endif
  return most;
}

uint32_t pointer_alignment(const void* p) noexcept {
  const auto address = reinterpret_cast<uintptr_t>(p) | 256u;
  return static_cast<uint32_t>(address & (~address + 1));
}

MatmulProblemKey matmul_problem_key(const Context& ctx, const MatmulArgs& x) noexcept {
  const Epilogue& e = x.epilogue;
  const auto has = [](const void* p) { return p != nullptr ? int64_t{pointer_alignment(p)} : 0; };
  const bool batched = x.batch > 1;
  return {ctx.device.is_cuda() ? ctx.device.index : -1,
          static_cast<int64_t>(ctx.workspace_bytes),
          x.m,
          x.n,
          x.k,
          x.lda,
          x.ldb,
          x.ldc,
          x.ldd,
          static_cast<int64_t>(x.ta) * 2 + static_cast<int64_t>(x.tb),
          static_cast<int64_t>(x.ab_type) * 16 + static_cast<int64_t>(x.d_type),
          (x.beta != 0.0f ? 1 : 0) + (x.allow_tf32 ? 2 : 0) + (x.c == x.d ? 4 : 0) +
              (x.allow_bf16 ? 8 : 0),
          has(x.a),
          has(x.b),
          has(x.c),
          has(x.d),
          has(x.bias),
          x.batch,
          batched ? x.stride_a : 0,
          batched ? x.stride_b : 0,
          batched ? x.stride_c : 0,
          batched ? x.stride_d : 0,
          static_cast<int64_t>(e.kind),
          static_cast<int64_t>(e.activation),
          has(e.aux),
          e.ld_aux,
          has(e.column_sum),
          (e.add_to_column_sum ? 1 : 0) + (e.slopes ? 2 : 0) + (e.partial != nullptr ? 4 : 0) +
              (e.bits ? 8 : 0)};
}

std::shared_ptr<const MatmulPlan> MatmulPlans::plan(const Context& ctx, const MatmulArgs& problem) {
  constexpr size_t kMost =
      4096;  // plans of a few hundred bytes; calls of ever new shapes start again
  const MatmulProblemKey key = matmul_problem_key(ctx, problem);
  {
    const std::lock_guard lock(mutex_);
    if (const auto known = plans_.find(key); known != plans_.end()) return known->second;
  }
  auto plan = std::make_shared<const MatmulPlan>(plan_matmul(ctx, options_, problem));
  const std::lock_guard lock(mutex_);
  if (plans_.size() >= kMost) plans_.clear();
  return plans_.try_emplace(key, std::move(plan)).first->second;
}

}  // namespace saturate::kernels
