// SPDX-License-Identifier: Apache-2.0
#include "kernels/optimizer/adafactor.h"

#include <fmt/format.h>

#include <algorithm>

#include "kernels/dispatch.h"
#include "kernels/host/validate.h"
#include "kernels/lists.h"
#include "kernels/optimizer/adafactor_impl.h"

namespace saturate::kernels {
namespace {

Fit fits(const Context& ctx, const AdafactorArgs& args) noexcept {
  return ctx.device.is_cuda() ? fits_cuda(args.dtype) : fits_cpu(args.dtype);
}

// clang-format off
constexpr Impl<AdafactorArgs> kSums[] = {
    SAT_CUDA_IMPL({"adafactor_sums_cuda", DeviceKind::cuda, fits, adafactor_sums_cuda})
    {"adafactor_sums_cpu", DeviceKind::cpu, fits, adafactor_sums_cpu},
};
constexpr Impl<AdafactorArgs> kMeasure[] = {
    SAT_CUDA_IMPL({"adafactor_measure_cuda", DeviceKind::cuda, fits, adafactor_measure_cuda})
    {"adafactor_measure_cpu", DeviceKind::cpu, fits, adafactor_measure_cpu},
};
constexpr Impl<AdafactorArgs> kApply[] = {
    SAT_CUDA_IMPL({"adafactor_apply_cuda", DeviceKind::cuda, fits, adafactor_apply_cuda})
    {"adafactor_apply_cpu", DeviceKind::cpu, fits, adafactor_apply_cpu},
};
// clang-format on

void run(const char* op, const Context& ctx, const AdafactorArgs& args,
         std::span<const Impl<AdafactorArgs>> list) {
  require_sizes(op, {{"tensor_count", args.tensor_count},
                     {"piece_count", args.piece_count},
                     {"factor_count", args.factor_count},
                     {"partial_count", args.partial_count}});
  if (args.tensor_count == 0) return;
  require_pointers(op, {{"factors", args.factors},
                        {"sums", args.sums},
                        {"totals", args.totals},
                        {"scratch", args.scratch},
                        {"tensors", args.tensors},
                        {"state", args.state}});
  if (args.piece_count > 0)
    require_pointers(op, {{"master", args.master}, {"grad", args.grad}, {"pieces", args.pieces}});
  if (args.compute != nullptr && args.compute_type != DType::bf16 &&
      args.compute_type != DType::f16) {
    throw Error(
        Errc::invalid_argument, op,
        fmt::format("compute_type is {}; it must be bf16 or f16 (leave compute null for f32)",
                    name_of(args.compute_type)));
  }
  dispatch(op, ctx, args, list, [&] {
    return shape_text(args.dtype, {args.tensor_count, args.factor_count});
  });
}

}  // namespace

std::vector<AdafactorPiece> adafactor_pieces(std::span<AdafactorTensor> tensors,
                                             int64_t& partials) {
  std::vector<AdafactorPiece> pieces;
  partials = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    AdafactorTensor& t = tensors[i];
    t.first_piece = std::ssize(pieces);
    t.partial = partials;
    for (int64_t row = 0; row < t.rows; row += kAdafactorRows) {
      const int64_t last = std::min(row + kAdafactorRows, t.rows);
      if (t.begin >= last * t.cols || t.end <= std::max(row * t.cols, t.begin)) continue;
      pieces.push_back({static_cast<int64_t>(i), row, partials});
      if (t.rows > 1) partials += t.cols;
    }
    t.pieces = std::ssize(pieces) - t.first_piece;
  }
  return pieces;
}

size_t adafactor_scratch_bytes(int64_t tensors, int64_t pieces, int64_t partials) {
  return static_cast<size_t>(tensors + 2 * pieces + partials) * sizeof(double);
}

void adafactor_sums(const Context& ctx, const AdafactorArgs& args) {
  run("adafactor_sums", ctx, args, kSums);
}
void adafactor_measure(const Context& ctx, const AdafactorArgs& args) {
  run("adafactor_measure", ctx, args, kMeasure);
}
void adafactor_apply(const Context& ctx, const AdafactorArgs& args) {
  run("adafactor_apply", ctx, args, kApply);
}

}  // namespace saturate::kernels
