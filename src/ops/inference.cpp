// SPDX-License-Identifier: Apache-2.0
#include "ops/inference.h"

#include <algorithm>

#include "kernels/adapters/keep_columns.h"
#include "kernels/elementwise/elementwise.h"
#include "kernels/head_norm/head_norm.h"
#include "kernels/relative_bias/relative_bias.h"

namespace saturate::ops {

Value head_norm(Tape& tape, Slice x, int64_t heads, int64_t head_size, Value weight, float eps) {
  SAT_ASSERT(!tape.training());
  const Tape::Info xi = tape.info(x.of);
  const Value y = tape.alias("head_norm", x.of);
  tape.record("head_norm", {x.of, weight}, {y}, [=](const Run& r) {
    void* data = r.at(x.of, x.column);
    kernels::head_norm(r.ctx, {.x = data,
                               .weight = r(weight),
                               .y = data,
                               .rows = xi.rows,
                               .heads = heads,
                               .head_size = head_size,
                               .x_stride = xi.cols,
                               .y_stride = xi.cols,
                               .dtype = xi.dtype,
                               .eps = eps});
  });
  return y;
}

Value keep_columns(Tape& tape, Value z, const std::vector<int32_t>& begins,
                   const int32_t* group_of_row, int64_t stride) {
  SAT_ASSERT(!tape.training());
  const Tape::Info zi = tape.info(z);
  SAT_ASSERT(begins.size() >= 2 && begins.back() == zi.cols &&
             begins.size() <= kernels::kMostAdapters + 1);
  kernels::KeepColumnsArgs args{.group_of_row = group_of_row,
                                .group_stride = stride,
                                .rows = zi.rows,
                                .groups = static_cast<int32_t>(begins.size()) - 1,
                                .dtype = zi.dtype};
  std::ranges::copy(begins, args.begins.begin());
  const Value kept = tape.alias("keep_columns", z);
  tape.record("keep_columns", {z}, {kept}, [=](const Run& r) {
    kernels::KeepColumnsArgs a = args;
    a.x = r(kept);
    a.group_of_row = r(args.group_of_row);
    kernels::keep_columns(r.ctx, a);
  });
  return kept;
}

Value relative_bias(Tape& tape, Value table, const int32_t* buckets, int64_t queries, int64_t keys,
                    int sign) {
  SAT_ASSERT(!tape.training());
  const Tape::Info ti = tape.info(table);
  const Value bias = tape.make("relative_bias", tape.wide_type(), ti.cols, queries * keys);
  tape.record("relative_bias", {table}, {bias}, [=](const Run& r) {
    kernels::relative_bias(r.ctx, {.table = r(table),
                                   .buckets = r(buckets),
                                   .bias = r(bias),
                                   .heads = ti.cols,
                                   .queries = queries,
                                   .keys = keys,
                                   .sign = sign,
                                   .dtype = ti.dtype});
  });
  return bias;
}

Value soft_cap(Tape& tape, Value x, float cap) {
  SAT_ASSERT(!tape.training());
  const Tape::Info xi = tape.info(x);
  const Value y = tape.alias("soft_cap", x);
  tape.record("soft_cap", {x}, {y}, [=](const Run& r) {
    kernels::soft_cap(
        r.ctx, {.x = r(x), .y = r(x), .count = xi.rows * xi.cols, .dtype = xi.dtype, .cap = cap});
  });
  return y;
}

}  // namespace saturate::ops
