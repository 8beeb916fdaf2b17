// SPDX-License-Identifier: Apache-2.0
#include "ops/residual_norm.h"

namespace saturate::ops {
namespace {

struct Saved {
  Value x = {}, branch = {}, sum = {}, y = {}, mean = {}, rstd = {};
  NormParameters norm = {};
  float dropout = 0.0f;
  RngRef rng = {};
  std::vector<RowRun> runs = {};  // of the mask
};

void record_backward(Tape& t, const Saved& s) {
  const Tape::Info xi = t.info(s.x);
  const Value d_y = t.gradient(s.y);
  // Without a branch the sum is x, whose gradient so far passes through like that of a sum.
  const Value d_sum = t.gradient(s.sum);
  if (!d_y) {  // only the residual stream was used further on
    t.set_gradient(s.x, d_sum);
    if (s.branch) t.set_gradient(s.branch, d_sum);
    SAT_ASSERT(s.dropout == 0.0f);
    return;
  }
  const Value d_x = t.make("d_residual", xi.dtype, xi.rows, xi.cols);
  const bool masked = s.branch && s.dropout > 0.0f;
  const Value d_branch = masked ? t.make("d_branch", xi.dtype, xi.rows, xi.cols) : Value{};
  bool first = false;
  const Value d_weight = t.parameter_gradient(s.norm.weight, &first);
  const Value d_bias = s.norm.bias ? t.parameter_gradient(s.norm.bias, &first) : Value{};
  // The branch has no other reader, so its gradient is whole, and its bias gets the sums of its columns.
  const Value bias = s.branch && !t.gradient(s.branch) ? t.bias_of(s.branch) : Value{};
  bool first_of_bias = false;
  const Value d_branch_sum = bias ? t.parameter_gradient(bias, &first_of_bias) : Value{};
  kernels::NormBackwardArgs args{.kind = s.norm.kind,
                                 .rows = xi.rows,
                                 .cols = xi.cols,
                                 .dtype = xi.dtype,
                                 .dropout = masked ? s.dropout : 0.0f,
                                 .rng = s.rng};
  const int64_t scratch = kernels::norm_backward_scratch_bytes(t.device(), args);
  const Value partial =
      scratch ? t.make("norm_partial", DType::f32, 1, (scratch + 3) / 4) : Value{};
  t.record("residual_norm_backward", {d_y, d_sum, s.sum, s.norm.weight, s.mean, s.rstd},
           {d_x, d_branch, d_weight, d_bias, d_branch_sum, partial}, [=](const Run& r) {
             for (const RowRun& run : s.runs) {
               const int64_t element = run.at * xi.cols;
               kernels::NormBackwardArgs a = args;
               a.d_y = r.at(d_y, element);
               a.d_sum = r.at(d_sum, element);
               a.sum = r.at(s.sum, element);
               a.weight = r(s.norm.weight);
               a.mean = r.at(s.mean, run.at);
               a.rstd = r.at(s.rstd, run.at);
               a.d_x = r.at(d_x, element);
               a.d_branch = r.at(d_branch, element);
               a.d_weight = r(d_weight);
               a.d_bias = r(d_bias);
               a.accumulate = r.adds(first) || run.at > 0;
               a.d_branch_sum = r(d_branch_sum);
               a.accumulate_branch_sum = r.adds(first_of_bias) || run.at > 0;
               a.partial = r(partial);
               a.rows = run.rows;
               a.rng = r(s.rng);
               a.rng.first_row = run.first;
               a.later = r.folds;
               kernels::norm_backward(r.ctx, a);
             }
           });
  // Several runs of rows have their first stage in one place.
  if (partial && s.runs.size() == 1) t.may_fold_later(partial, {d_weight, d_bias, d_branch_sum});
  if (!s.branch) {
    t.set_gradient(s.x, d_x);  // includes what was there: it entered as d_sum
    return;
  }
  t.add_gradient(s.x, d_x);
  const Value d_of_branch = masked ? d_branch : d_x;
  bias ? t.set_summed_gradient(s.branch, d_of_branch) : t.set_gradient(s.branch, d_of_branch);
}

}  // namespace

ResidualNorm residual_norm(Tape& tape, Value x, Value branch, const NormParameters& norm,
                           float dropout) {
  const Tape::Info xi = tape.info(x);
  const float p = tape.training() && branch ? dropout : 0.0f;
  Saved s{.x = x,
          .branch = branch,
          .norm = norm,
          .dropout = p,
          .rng = p > 0 ? tape.random(MaskKind::residual) : RngRef{},
          .runs = p > 0 ? tape.row_runs(xi.rows) : std::vector<RowRun>{{.rows = xi.rows}}};
  s.sum = branch ? tape.make("residual", xi.dtype, xi.rows, xi.cols) : x;
  s.y = tape.make("norm", xi.dtype, xi.rows, xi.cols);
  const bool centred = norm.kind == kernels::NormKind::layer_norm;
  s.mean = centred ? tape.make("norm_mean", tape.wide_type(), 1, xi.rows) : Value{};
  s.rstd = tape.make("norm_rstd", tape.wide_type(), 1, xi.rows);
  const Value sum_out = branch ? s.sum : Value{};
  // y of x + branch, which goes to sum_out; or of the sum itself, where there is no branch.
  const auto normalise = [=](const Run& r, Value of, Value added, Value sum) {
    for (const RowRun& run : s.runs) {
      const int64_t element = run.at * xi.cols;
      kernels::NormForwardArgs a{.kind = s.norm.kind,
                                 .x = r.at(of, element),
                                 .branch = r.at(added, element),
                                 .sum = r.at(sum, element),
                                 .weight = r(s.norm.weight),
                                 .bias = r(s.norm.bias),
                                 .y = r.at(s.y, element),
                                 .mean = r.at(s.mean, run.at),
                                 .rstd = r.at(s.rstd, run.at),
                                 .rows = run.rows,
                                 .cols = xi.cols,
                                 .dtype = xi.dtype,
                                 .eps = s.norm.eps,
                                 .dropout = s.dropout,
                                 .rng = r(s.rng)};
      a.rng.first_row = run.first;
      kernels::norm_forward(r.ctx, a);
    }
  };
  tape.record(
      "residual_norm", {x, branch, norm.weight, norm.bias}, {sum_out, s.y, s.mean, s.rstd},
      [=](const Run& r) { normalise(r, s.x, s.branch, sum_out); },
      [=](Tape& t) { record_backward(t, s); });
  // The statistics are those of the sum as it was rounded: the same bits from the sum alone.
  if (branch)
    tape.again_from(s.sum, {norm.weight, norm.bias},
                    [=](const Run& r) { normalise(r, s.sum, {}, {}); });
  return {s.sum, s.y};
}

}  // namespace saturate::ops
