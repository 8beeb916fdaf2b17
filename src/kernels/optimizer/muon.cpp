// SPDX-License-Identifier: Apache-2.0
#include "kernels/optimizer/muon.h"

#include <fmt/format.h>

#include <algorithm>

#include "kernels/dispatch.h"
#include "kernels/gemm/matmul.h"
#include "kernels/host/validate.h"
#include "kernels/lists.h"
#include "kernels/optimizer/muon_impl.h"

namespace saturate::kernels {
namespace {

constexpr int kIterations = 5;
constexpr float kA = 3.4445f, kB = -4.775f, kC = 2.0315f;

Fit fits(const Context& ctx, const MuonPartArgs& args) noexcept {
  return ctx.device.is_cuda() ? fits_cuda(args.muon.dtype) : fits_cpu(args.muon.dtype);
}

// clang-format off
constexpr Impl<MuonPartArgs> kMomentum[] = {
    SAT_CUDA_IMPL({"muon_momentum_cuda", DeviceKind::cuda, fits, muon_momentum_cuda})
    {"muon_momentum_cpu", DeviceKind::cpu, fits, muon_momentum_cpu},
};
constexpr Impl<MuonPartArgs> kScale[] = {
    SAT_CUDA_IMPL({"muon_scale_cuda", DeviceKind::cuda, fits, muon_scale_cuda})
    {"muon_scale_cpu", DeviceKind::cpu, fits, muon_scale_cpu},
};
constexpr Impl<MuonPartArgs> kApply[] = {
    SAT_CUDA_IMPL({"muon_apply_cuda", DeviceKind::cuda, fits, muon_apply_cuda})
    {"muon_apply_cpu", DeviceKind::cpu, fits, muon_apply_cpu},
};
// clang-format on

// Where the parts of the scratch begin, in bytes.
struct Places {
  size_t partial = 0, x = 0, next = 0, gram = 0, polynomial = 0, end = 0;
};

Places places(const MuonArgs& a) {
  Places p;
  const auto take = [&](size_t& at, int64_t elements, size_t size) {
    at = p.end;
    p.end += (static_cast<size_t>(elements) * size + 255) / 256 * 256;
  };
  const size_t size = size_of(a.product_type());
  const int64_t matrix = a.rows * a.cols, shorter = std::min(a.rows, a.cols);
  take(p.partial, a.batch * norm_blocks(matrix), sizeof(double));
  take(p.x, a.batch * matrix, size);
  take(p.next, a.batch * matrix, size);
  take(p.gram, a.batch * shorter * shorter, size);
  take(p.polynomial, a.batch * shorter * shorter, size);
  return p;
}

}  // namespace

size_t muon_scratch_bytes(const MuonArgs& args) { return places(args).end; }

void muon(const Context& ctx, const MuonArgs& args) {
  require_sizes("muon", {{"batch", args.batch}, {"rows", args.rows}, {"cols", args.cols}});
  if (args.batch * args.rows * args.cols == 0) return;
  require_pointers("muon", {{"master", args.master},
                            {"m", args.m},
                            {"grad", args.grad},
                            {"scratch", args.scratch},
                            {"state", args.state}});
  if (args.compute != nullptr && args.compute_type != DType::bf16 &&
      args.compute_type != DType::f16) {
    throw Error(
        Errc::invalid_argument, "muon",
        fmt::format("compute_type is {}; it must be bf16 or f16 (leave compute null for f32)",
                    name_of(args.compute_type)));
  }
  if (args.compute != nullptr && !ctx.device.is_cuda()) {
    throw Error(Errc::unsupported, "muon",
                "compute is given, and a copy in 16 bits is made on GPUs alone; leave it null");
  }
  const Places at = places(args);
  char* const scratch = static_cast<char*>(args.scratch);
  MuonPartArgs part{.muon = args,
                    .x = scratch + at.x,
                    .partial = reinterpret_cast<double*>(scratch + at.partial)};
  const auto shape = [&] { return shape_text(args.dtype, {args.batch, args.rows, args.cols}); };
  dispatch("muon_momentum", ctx, part, std::span<const Impl<MuonPartArgs>>(kMomentum), shape);
  dispatch("muon_scale", ctx, part, std::span<const Impl<MuonPartArgs>>(kScale), shape);

  const bool wide = args.rows <= args.cols;  // x x^T is the smaller square
  const int64_t s = wide ? args.rows : args.cols, l = wide ? args.cols : args.rows;
  const DType type = args.product_type();
  void *x = scratch + at.x, *next = scratch + at.next;
  void *const gram = scratch + at.gram, *const polynomial = scratch + at.polynomial;
  const int64_t whole = args.rows * args.cols, square = s * s;
  MatmulArgs squares{.a = x,
                     .b = x,
                     .d = gram,
                     .m = s,
                     .n = s,
                     .k = l,
                     .lda = args.cols,
                     .ldb = args.cols,
                     .ldd = s,
                     .ta = wide ? Transpose::no : Transpose::yes,
                     .tb = wide ? Transpose::yes : Transpose::no,
                     .ab_type = type,
                     .d_type = type,
                     .batch = args.batch,
                     .stride_a = whole,
                     .stride_b = whole,
                     .stride_d = square};
  const MatmulArgs quintic{.a = gram,
                           .b = gram,
                           .c = gram,
                           .d = polynomial,
                           .m = s,
                           .n = s,
                           .k = s,
                           .lda = s,
                           .ldb = s,
                           .ldc = s,
                           .ldd = s,
                           .ab_type = type,
                           .d_type = type,
                           .alpha = kC,
                           .beta = kB,
                           .batch = args.batch,
                           .stride_a = square,
                           .stride_b = square,
                           .stride_c = square,
                           .stride_d = square};
  MatmulArgs last{.a = wide ? polynomial : x,
                  .b = wide ? x : polynomial,
                  .c = x,
                  .d = next,
                  .m = args.rows,
                  .n = args.cols,
                  .k = s,
                  .lda = wide ? s : args.cols,
                  .ldb = wide ? args.cols : s,
                  .ldc = args.cols,
                  .ldd = args.cols,
                  .ab_type = type,
                  .d_type = type,
                  .alpha = 1.0f,
                  .beta = kA,
                  .batch = args.batch,
                  .stride_a = wide ? square : whole,
                  .stride_b = wide ? whole : square,
                  .stride_c = whole,
                  .stride_d = whole};
  for (int i = 0; i < kIterations; ++i) {
    squares.a = squares.b = last.c = x;
    (wide ? last.b : last.a) = x;
    last.d = next;
    matmul(ctx, squares);
    matmul(ctx, quintic);
    matmul(ctx, last);
    std::swap(x, next);
  }
  part.x = x;
  dispatch("muon_apply", ctx, part, std::span<const Impl<MuonPartArgs>>(kApply), shape);
}

}  // namespace saturate::kernels
