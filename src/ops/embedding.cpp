// SPDX-License-Identifier: Apache-2.0
#include "ops/embedding.h"

#include "kernels/embedding/embedding.h"

namespace saturate::ops {
namespace {

using kernels::EmbeddingArgs;

// What the recorded closures share.
struct Lookup {
  EmbeddingSpec s;
  EmbeddingArgs args;  // of the wanted rows, without device memory of values
  int64_t first_id = 0;

  EmbeddingArgs bind(const Run& r) const {
    EmbeddingArgs a = args;
    a.ids = r(args.ids);
    a.positions = r(args.positions);
    a.rng = r(args.rng);
    a.position_table = r(s.positions_table);
    return a;
  }

  // Rows of the tokens that d_y has: from `first` on.
  void record_table_gradient(Tape& t, Value d_y, int64_t first) const {
    // Lookups come first in the forward pass, so here the products with the table have added
    // theirs.
    const ParameterSpec& p = t.parameters().specs()[static_cast<size_t>(t.info(s.table).parameter)];
    const int64_t zero_row = p.zero_row - first_id;
    const bool has_zero_row = p.zero_row >= 0 && zero_row >= 0 && zero_row < p.rows;
    const int64_t rows = t.info(d_y).rows;
    bool new_gradient = false;
    const Value d_table = t.parameter_gradient(s.table, &new_gradient);
    t.record("embedding_backward", {d_y}, {d_table}, [=, lookup = *this](const Run& r) {
      EmbeddingArgs forward = lookup.bind(r);
      forward.ids = r(lookup.s.tokens.ids);
      forward.rows = rows;
      if (forward.dropout > 0) forward.rng.first_row -= lookup.s.first_row - first;
      kernels::embedding_backward(r.ctx, {.forward = forward,
                                          .d_y = r(d_y),
                                          .order = r(lookup.s.tokens.order),
                                          .valid_rows = r(lookup.s.tokens.valid),
                                          .d_table = r(d_table),
                                          .zero_row = has_zero_row ? zero_row : -1,
                                          .first_row = first,
                                          .batch_rows = lookup.s.tokens.rows,
                                          .accumulate = r.adds(new_gradient)});
    });
  }

  void record_position_gradient(Tape& t, Value d_y) const {
    bool new_gradient = false;
    const Value d_positions = t.parameter_gradient(s.positions_table, &new_gradient);
    t.record("position_backward", {d_y}, {d_positions}, [=, lookup = *this](const Run& r) {
      kernels::embedding_backward(r.ctx, {.forward = lookup.bind(r),
                                          .d_y = r(d_y),
                                          .cu = r(lookup.s.tokens.cu),
                                          .sequences = lookup.s.tokens.sequences,
                                          .d_position_table = r(d_positions),
                                          .first_row = lookup.s.first_row,
                                          .batch_rows = lookup.s.tokens.rows,
                                          .accumulate_positions = r.adds(new_gradient)});
    });
  }
};

// The rows of all ranks from this rank's part of the table, and of their sum its own.
Value looked_up(Tape& tape, const Lookup& l, int64_t first) {
  const Tape::Info table = tape.info(l.s.table);
  const EmbeddingArgs args{.ids = l.s.tokens.ids + first,
                           .rows = l.args.rows * l.s.vocabulary.parts(),
                           .cols = table.cols,
                           .vocab = table.rows,
                           .first_id = l.first_id,
                           .dtype = table.dtype};
  const Value x = tape.make("looked_up", table.dtype, args.rows, args.cols);
  tape.record("embedding_lookup", {l.s.table}, {x}, [=, table = l.s.table](const Run& r) {
    EmbeddingArgs a = args;
    a.ids = r(args.ids);
    a.table = r(table);
    a.y = r(x);
    kernels::embedding_forward(r.ctx, a);
  });
  return scatter_sum_rows(tape, l.s.vocabulary, x);
}

}  // namespace

Value embedding(Tape& tape, const EmbeddingSpec& spec) {
  Lookup l{.s = spec, .args = {}};
  if (l.s.rows == 0) l.s.rows = l.s.tokens.rows;
  const float p = tape.training() ? l.s.dropout : 0.0f;
  const Tape::Info ti = tape.info(l.s.table);
  const int parts = l.s.vocabulary.parts(), part = l.s.vocabulary.part();
  const int64_t first_of_all = l.s.first_row - part * l.s.rows;  // row of all these ranks
  l.first_id = part * ti.rows;
  l.args = {.ids = l.s.tokens.ids + l.s.first_row,
            .positions = l.s.tokens.positions + l.s.first_row,
            .rows = l.s.rows,
            .cols = ti.cols,
            .vocab = ti.rows,
            .max_positions = l.s.positions_table ? tape.info(l.s.positions_table).rows : 0,
            .first_id = l.first_id,
            .dtype = ti.dtype,
            .scale = l.s.scale,
            .dropout = p,
            .rng = p > 0 ? tape.random(MaskKind::embedding) : RngRef{}};
  // Each row's embedding: of the table, or where ranks have parts of it one that came from them.
  const bool cut = parts > 1;
  const Value from = cut ? looked_up(tape, l, first_of_all) : l.s.table;
  const Value y = tape.make("embedding", ti.dtype, l.s.rows, ti.cols);
  tape.record(
      "embedding", {from, l.s.positions_table}, {y},
      [=](const Run& r) {
        EmbeddingArgs a = l.bind(r);
        if (cut) {
          a.ids = nullptr;
          a.vocab = a.rows;
        }
        a.table = r(from);
        a.y = r(y);
        kernels::embedding_forward(r.ctx, a);
      },
      [=](Tape& t) {
        const Value d_y = t.gradient(y);
        if (l.s.positions_table && t.info(l.s.positions_table).parameter >= 0)
          l.record_position_gradient(t, d_y);
        l.record_table_gradient(t, gather_rows(t, l.s.vocabulary, d_y), first_of_all);
      });
  return y;
}

}  // namespace saturate::ops
