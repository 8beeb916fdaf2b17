// SPDX-License-Identifier: Apache-2.0
#include "ops/embedding.h"

#include "kernels/embedding/embedding.h"

namespace saturate::ops {

Value embedding(Tape& tape, const TokenArrays& tokens, Value table, Value positions_table,
                float scale, float dropout) {
  const float p = tape.training() ? dropout : 0.0f;
  const Tape::Info ti = tape.info(table);
  const Value y = tape.make("embedding", ti.dtype, tokens.rows, ti.cols);
  const kernels::EmbeddingArgs args{
      .ids = tokens.ids,
      .positions = tokens.positions,
      .rows = tokens.rows,
      .cols = ti.cols,
      .vocab = ti.rows,
      .max_positions = positions_table ? tape.info(positions_table).rows : 0,
      .dtype = ti.dtype,
      .scale = scale,
      .dropout = p,
      .rng = p > 0 ? tape.random(MaskKind::embedding) : RngRef{}};
  const auto bind = [=](const Run& r) {
    kernels::EmbeddingArgs a = args;
    a.ids = r(args.ids);
    a.positions = r(args.positions);
    a.rng = r(args.rng);
    a.table = r(table);
    a.position_table = r(positions_table);
    return a;
  };
  tape.record(
      "embedding", {table, positions_table}, {y},
      [=](const Run& r) {
        kernels::EmbeddingArgs a = bind(r);
        a.y = r(y);
        kernels::embedding_forward(r.ctx, a);
      },
      [=](Tape& t) {
        const Value d_y = t.gradient(y);
        // Lookups come first in the forward pass, so here the products with the table have added
        // theirs.
        const int64_t zero_row =
            t.parameters().specs()[static_cast<size_t>(t.info(table).parameter)].zero_row;
        bool first = false, first_position = false;
        const Value d_table = t.parameter_gradient(table, &first);
        const bool learned = positions_table && t.info(positions_table).parameter >= 0;
        const Value d_positions =
            learned ? t.parameter_gradient(positions_table, &first_position) : Value{};
        t.record("embedding_backward", {d_y, positions_table}, {d_table, d_positions},
                 [=](const Run& r) {
                   kernels::embedding_backward(r.ctx,
                                               {.forward = bind(r),
                                                .d_y = r(d_y),
                                                .order = r(tokens.order),
                                                .valid_rows = r(tokens.valid),
                                                .cu = r(tokens.cu),
                                                .sequences = tokens.sequences,
                                                .d_table = r(d_table),
                                                .d_position_table = r(d_positions),
                                                .zero_row = zero_row,
                                                .accumulate = r.adds(first),
                                                .accumulate_positions = r.adds(first_position)});
                 });
      });
  return y;
}

}  // namespace saturate::ops
