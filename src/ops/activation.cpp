// SPDX-License-Identifier: Apache-2.0
#include "ops/activation.h"

namespace saturate::ops {

Value activation(Tape& tape, Value x, kernels::ActivationKind kind, bool gated, float dropout,
                 ColumnPart part) {
  const float p = tape.training() ? dropout : 0.0f;
  const Tape::Info xi = tape.info(x);
  const int64_t cols = gated ? xi.cols / 2 : xi.cols;
  const Value y = tape.make("activation", xi.dtype, xi.rows, cols);
  RngRef rng;
  if (p > 0) {
    rng = tape.random(MaskKind::activation);
    rng.first_column = part.first_column, rng.columns = part.columns;
  }
  const kernels::ActivationArgs args{.kind = kind,
                                     .gated = gated,
                                     .rows = xi.rows,
                                     .cols = cols,
                                     .dtype = xi.dtype,
                                     .dropout = p,
                                     .rng = rng};
  const auto runs = p > 0 ? tape.row_runs(xi.rows) : std::vector<RowRun>{{.rows = xi.rows}};
  const auto bind = [=](const Run& r, const RowRun& run) {
    kernels::ActivationArgs a = args;
    a.x = r.at(x, run.at * xi.cols);
    a.rows = run.rows;
    a.rng = r(args.rng);
    a.rng.first_row = run.first;
    return a;
  };
  tape.record(
      "activation", {x}, {y},
      [=](const Run& r) {
        for (const RowRun& run : runs) {
          kernels::ActivationArgs a = bind(r, run);
          a.y = r.at(y, run.at * cols);
          kernels::activation_forward(r.ctx, a);
        }
      },
      [=](Tape& t) {
        const Value d_y = t.gradient(y);
        const Value d_x = t.make("d_activation", xi.dtype, xi.rows, xi.cols);
        t.record("activation_backward", {x, d_y}, {d_x}, [=](const Run& r) {
          for (const RowRun& run : runs) {
            kernels::activation_backward(r.ctx, {.forward = bind(r, run),
                                                 .d_y = r.at(d_y, run.at * cols),
                                                 .d_x = r.at(d_x, run.at * xi.cols)});
          }
        });
        t.add_gradient(x, d_x);
      });
  return y;
}

}  // namespace saturate::ops
