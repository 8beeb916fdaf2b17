// SPDX-License-Identifier: Apache-2.0
#include "kernels/embedding/embedding.h"

#include <fmt/format.h>

#include "kernels/dispatch.h"
#include "kernels/embedding/embedding_impl.h"
#include "kernels/host/validate.h"
#include "kernels/lists.h"

namespace saturate::kernels {
namespace {

Fit forward_cpu_fits(const Context&, const EmbeddingArgs& a) noexcept { return fits_cpu(a.dtype); }
Fit backward_cpu_fits(const Context&, const EmbeddingBackwardArgs& a) noexcept {
  return fits_cpu(a.forward.dtype);
}
#if SATURATE_WITH_CUDA
Fit fits_rows(const EmbeddingArgs& a) noexcept {
  if (a.rows >= int64_t{1} << 31) return {"2^31 or more rows (one block a row)"};
  return fits_cuda(a.dtype);
}
Fit forward_cuda_fits(const Context&, const EmbeddingArgs& a) noexcept { return fits_rows(a); }
Fit backward_cuda_fits(const Context&, const EmbeddingBackwardArgs& a) noexcept {
  return fits_rows(a.forward);
}
#endif

// clang-format off
constexpr Impl<EmbeddingArgs> kForward[] = {
    SAT_CUDA_IMPL({"embedding_forward_cuda", DeviceKind::cuda, forward_cuda_fits, embedding_forward_cuda})
    {"embedding_forward_cpu", DeviceKind::cpu, forward_cpu_fits, embedding_forward_cpu},
};
constexpr Impl<EmbeddingBackwardArgs> kBackward[] = {
    SAT_CUDA_IMPL({"embedding_backward_cuda", DeviceKind::cuda, backward_cuda_fits, embedding_backward_cuda})
    {"embedding_backward_cpu", DeviceKind::cpu, backward_cpu_fits, embedding_backward_cpu},
};
// clang-format on

void require_common(const char* op, EmbeddingArgs& a) {
  require_float(op, a.dtype);
  require_sizes(
      op,
      {{"rows", a.rows}, {"cols", a.cols}, {"vocab", a.vocab}, {"max_positions", a.max_positions}});
  require_dropout(op, a.dropout, a.rng);
  a.rng = whole_matrix(op, a.rng, a.rows, a.cols);
}

}  // namespace

template <>
std::span<const Impl<EmbeddingArgs>> impls_of() noexcept {
  return kForward;
}
template <>
std::span<const Impl<EmbeddingBackwardArgs>> impls_of() noexcept {
  return kBackward;
}

void embedding_forward(const Context& ctx, const EmbeddingArgs& given) {
  EmbeddingArgs args = given;
  require_common("embedding_forward", args);
  if (args.rows == 0 || args.cols == 0) return;
  require_pointers("embedding_forward", {{"table", args.table}, {"y", args.y}});
  if (args.position_table != nullptr) {
    require_pointers("embedding_forward", {{"positions", args.positions}});
    if (args.max_positions == 0) {
      throw Error(Errc::invalid_argument, "embedding_forward",
                  "max_positions is 0 but there is a position table; give its number of rows");
    }
  }
  dispatch("embedding_forward", ctx, args, std::span<const Impl<EmbeddingArgs>>(kForward), [&] {
    return shape_text(args.dtype, {args.rows, args.cols});
  });
}

void embedding_backward(const Context& ctx, const EmbeddingBackwardArgs& given) {
  EmbeddingBackwardArgs args = given;
  constexpr const char* kOp = "embedding_backward";
  require_common(kOp, args.forward);
  require_sizes(kOp, {{"first_row", args.first_row}, {"batch_rows", args.batch_rows}});
  if (args.batch_rows == 0) args.batch_rows = args.first_row + args.forward.rows;
  if (args.first_row + args.forward.rows > args.batch_rows) {
    throw Error(Errc::invalid_argument, kOp,
                fmt::format("rows {} + {} do not lie in a batch of {}", args.first_row,
                            args.forward.rows, args.batch_rows));
  }
  if (args.zero_row < -1 || args.zero_row >= args.forward.vocab) {
    throw Error(Errc::invalid_argument, kOp,
                fmt::format("zero_row is {}; it must be a row of the table, below vocab {}, or -1",
                            args.zero_row, args.forward.vocab));
  }
  if (args.forward.cols == 0) return;
  if (args.d_position_table == nullptr) require_pointers(kOp, {{"d_table", args.d_table}});
  if (args.forward.rows > 0) {
    require_pointers(kOp, {{"d_y", args.d_y}});
    if (args.d_table != nullptr) {
      require_pointers(
          kOp, {{"ids", args.forward.ids}, {"order", args.order}, {"valid_rows", args.valid_rows}});
    }
  }
  if (args.d_position_table != nullptr && args.sequences > 0)
    require_pointers(kOp, {{"cu", args.cu}});
  dispatch(kOp, ctx, args, std::span<const Impl<EmbeddingBackwardArgs>>(kBackward), [&] {
    return shape_text(args.forward.dtype, {args.forward.rows, args.forward.cols});
  });
}

}  // namespace saturate::kernels
