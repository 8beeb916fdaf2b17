// SPDX-License-Identifier: Apache-2.0
#include "kernels/gemm/wgmma/matmul_wgmma.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>

#include "kernels/gemm/wgmma/wgmma_args.h"
#include "runtime/cuda/check.h"

namespace saturate::kernels {
namespace {

using wgmma::blocks_of;
using wgmma::ceil_div;
using wgmma::Form;
using wgmma::form_of;
using wgmma::kShapeInfo;
using wgmma::kTileK;
using wgmma::map_of;
using wgmma::Shape;

bool exists(Form form, Shape shape) {
  return form != Form::weight_gradient || shape != Shape::ping_pong_128x192;
}

// Predicted clocks of a plan: rounds of units over the pairs of blocks. A unit takes what its
// products need on the tensor cores (1024 clocks for 128 x 256 x 64) or what its operands need from
// L2, and writing: after the products, or beside those of the other consumer (ping-pong). Rates as
// measured, see LADDER.md.
double predicted_clocks(const Context& ctx, const MatmulArgs& x, const WgmmaPlan& plan) {
  constexpr double kReadBytesAClock = 31, kWriteBytesAClock = 27, kOfPeak = 0.94;  // of a block
  const auto& shape = kShapeInfo[plan.shape];
  const int64_t pairs = ceil_div(x.m, 2 * shape.m) * ceil_div(x.n, shape.n) * plan.splits;
  const double rounds = static_cast<double>(ceil_div(pairs, blocks_of(ctx) / 2));
  const double blocks = static_cast<double>(ceil_div(ceil_div(x.k, kTileK), plan.splits));
  const double multiply = blocks * 1024.0 * shape.m * shape.n / (128 * 256) / kOfPeak;
  const double read = blocks * (shape.m + shape.n / 2) * kTileK * 2;
  const double written =
      static_cast<double>(shape.m * shape.n) * static_cast<double>(size_of(x.d_type));
  const bool ping_pong = static_cast<Shape>(plan.shape) == Shape::ping_pong_128x192;
  const double unit =
      ping_pong ? std::max(multiply + 250, (read + written) / kReadBytesAClock)
                : std::max(multiply, read / kReadBytesAClock) + written / kWriteBytesAClock + 300;
  const double reduce =
      plan.splits > 1 ? static_cast<double>(x.m * x.n * plan.splits) * 4 / 2000 : 0;
  return rounds * unit + 3000 + reduce;
}

template <class T>
cudaError_t launch_any_form(Form form, Shape shape, const wgmma::Problem& p, int blocks,
                            cudaStream_t stream) {
  const auto launch = form == Form::forward          ? wgmma::launch_form<T, Form::forward>
                      : form == Form::input_gradient ? wgmma::launch_form<T, Form::input_gradient>
                                                     : wgmma::launch_form<T, Form::weight_gradient>;
  return launch(shape, p, blocks, stream);
}

}  // namespace

std::string name_of(const WgmmaPlan& plan) {
  return fmt::format("{}, band {}{}", kShapeInfo[plan.shape].name, plan.band,
                     plan.splits > 1 ? fmt::format(", {} splits", plan.splits) : "");
}

Fit matmul_wgmma_cuda_fits(const Context& ctx, const MatmulArgs& x) noexcept {
  if (x.ab_type != DType::bf16 && x.ab_type != DType::f16) return {"multiplies bf16 and f16 only"};
  if (x.ta == Transpose::yes && x.tb == Transpose::yes) return {"op(A) and op(B) both transposed"};
  const bool wide = x.ta == Transpose::yes;
  if (wide && x.d_type != DType::f32) return {"a transposed A needs results in f32"};
  if (!wide && x.d_type != x.ab_type) return {"results must have the operands' type"};
  const auto aligned = [](const void* p, size_t bytes) {
    return reinterpret_cast<uintptr_t>(p) % bytes == 0;
  };
  if (!aligned(x.a, 16) || !aligned(x.b, 16) || x.lda % 8 != 0 || x.ldb % 8 != 0)
    return {"A or B is not aligned to 16 bytes in every row"};
  if (wide ? !aligned(x.d, 8) || x.ldd % 2 != 0 : !aligned(x.d, 16) || x.ldd % 8 != 0)
    return {wide ? "D is not aligned to 8 bytes in every row"
                 : "D is not aligned to 16 bytes in every row"};
  if (!wide && x.beta != 0.0f && (!aligned(x.c, 16) || x.ldc % 8 != 0))
    return {"C is not aligned to 16 bytes in every row"};
  if (x.batch != 1) return {"one product at a time"};
  if (!x.epilogue.is_plain()) return {"has no epilogue but the bias"};
  if (!wide && x.n % 8 != 0) return {"n is not a multiple of 8"};
  if (x.k == 0) return {"nothing to multiply (k = 0)"};
  if (std::max({x.m, x.n, x.k}) >= int64_t{1} << 30) return {"a size exceeds 2^30"};
  return wgmma::device_fits(ctx);
}

WgmmaPlan wgmma_plan_named(const std::string& name) {
  for (int s = 0; s < wgmma::kShapes; ++s) {
    const std::string prefix = kShapeInfo[s].name;
    if (!name.starts_with(prefix)) continue;
    WgmmaPlan plan{s, 1, 0};
    std::sscanf(name.c_str() + prefix.size(), ", band %d, %d splits", &plan.band, &plan.splits);
    if (plan.band >= 1 && plan.splits >= 1 && name_of(plan) == name) return plan;
  }
  return {-1, 0, 0};
}

Fit wgmma_plan_fits(const Context& ctx, const MatmulArgs& x, const WgmmaPlan& plan) noexcept {
  if (plan.shape < 0) return {"no such configuration"};
  if (!exists(form_of(x), static_cast<Shape>(plan.shape))) return {"not built for this layout"};
  if (plan.splits == 1) return {};
  if (form_of(x) != Form::weight_gradient) return {"only weight gradients are split"};
  if (x.n % 2 != 0) return {"splits need an even n"};
  if (wgmma_workspace(x, plan) > ctx.workspace_bytes)
    return {"the workspace has no room for the partial sums"};
  if (ceil_div(x.k, kTileK) < 8 * plan.splits) return {"too little to split"};
  return {};
}

size_t wgmma_workspace(const MatmulArgs& x, const WgmmaPlan& plan) noexcept {
  return static_cast<size_t>(x.m * x.n * (plan.splits - 1)) * sizeof(float);
}

double wgmma_predicted_ms(const Context& ctx, const MatmulArgs& x, const WgmmaPlan& plan) {
  constexpr double kClocksAMs = 1.5e6;  // what an H200 holds under this load
  return predicted_clocks(ctx, x, plan) / kClocksAMs;
}

std::vector<WgmmaPlan> wgmma_plans(const Context& ctx, const MatmulArgs& x) {
  std::vector<WgmmaPlan> plans;
  for (int s = 0; s < wgmma::kShapes; ++s) {
    for (int splits = 1; splits <= 16; ++splits) {
      for (int band : {8, 4, 2}) {
        if (wgmma_plan_fits(ctx, x, {s, splits, band})) plans.push_back({s, splits, band});
      }
    }
  }
  std::stable_sort(plans.begin(), plans.end(), [&](const WgmmaPlan& a, const WgmmaPlan& b) {
    return predicted_clocks(ctx, x, a) < predicted_clocks(ctx, x, b);
  });
  return plans;
}

void matmul_wgmma_run(const Context& ctx, const MatmulArgs& x, const WgmmaPlan& plan) {
  const Form form = form_of(x);
  const auto& shape = kShapeInfo[plan.shape];
  const bool k_major_a = form != Form::weight_gradient, k_major_b = form == Form::forward;
  wgmma::Problem p = wgmma::problem_of(x, shape.m, shape.n, kTileK, plan.splits, plan.band);
  p.a = k_major_a ? map_of(x.a, x.ab_type, x.m, x.k, x.lda, shape.m)
                  : map_of(x.a, x.ab_type, x.k, x.m, x.lda, kTileK);
  p.b = k_major_b ? map_of(x.b, x.ab_type, x.n, x.k, x.ldb, shape.n / 2)
                  : map_of(x.b, x.ab_type, x.k, x.n, x.ldb, kTileK / 2);
  p.partial = static_cast<float*>(ctx.workspace);
  const auto launch =
      x.ab_type == DType::bf16 ? launch_any_form<__nv_bfloat16> : launch_any_form<__half>;
  SAT_CUDA(launch(form, static_cast<Shape>(plan.shape), p, wgmma::blocks_for(ctx, p),
                  cuda::stream_of(ctx)));
  const int splits = p.units / (p.pairs_m * p.tiles_n);
  if (splits > 1) {
    wgmma::add_partials(p.partial, splits - 1, static_cast<float*>(x.d), x.ldd, p.m, p.n,
                        cuda::stream_of(ctx));
    SAT_CUDA_LAUNCHED("add_partials");
  }
}

void matmul_wgmma_cuda(const Context& ctx, const MatmulArgs& x) {
  matmul_wgmma_run(ctx, x, wgmma_plans(ctx, x).front());
}

}  // namespace saturate::kernels
