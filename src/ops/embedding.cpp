// SPDX-License-Identifier: Apache-2.0
#include "ops/embedding.h"

#include "kernels/embedding/embedding.h"
#include "kernels/gemm/packed/packed_linear.h"

namespace saturate::ops {
namespace {

using kernels::EmbeddingArgs;

// What the recorded closures share.
struct Lookup {
  EmbeddingSpec s;
  EmbeddingArgs args;  // of the wanted rows, without device memory of values
  int64_t first_id = 0;
  std::vector<RowRun> own, all;  // where the wanted rows are, and those of all `vocabulary` ranks

  EmbeddingArgs bind(const Run& r, const RowRun& run) const {
    EmbeddingArgs a = args;
    a.rows = run.rows;
    a.ids = r(s.tokens.ids + run.first);
    a.positions = r(s.tokens.positions + run.first);
    a.rng = r(args.rng);
    // Without masks there is no matrix of them in which the rows would have a place.
    if (a.dropout > 0) a.rng.first_row += run.first - own.front().first;
    a.position_table = r(s.positions_table);
    return a;
  }

  // d_y has the rows of all ranks.
  void record_table_gradient(Tape& t, Value d_y) const {
    // Lookups come first in the forward pass, so here the products with the table have added
    // theirs.
    const ParameterSpec& p = t.parameters().specs()[static_cast<size_t>(t.info(s.table).parameter)];
    const int64_t zero_row = p.zero_row - first_id;
    const bool has_zero_row = p.zero_row >= 0 && zero_row >= 0 && zero_row < p.rows;
    bool new_gradient = false;
    const Value d_table = t.parameter_gradient(s.table, &new_gradient);
    t.record("embedding_backward", {d_y}, {d_table}, [=, lookup = *this](const Run& r) {
      for (const RowRun& run : lookup.all) {
        EmbeddingArgs forward = lookup.bind(r, run);
        forward.ids = r(lookup.s.tokens.ids);
        kernels::embedding_backward(r.ctx, {.forward = forward,
                                            .d_y = r.at(d_y, run.at * forward.cols),
                                            .order = r(lookup.s.tokens.order),
                                            .valid_rows = r(lookup.s.tokens.valid),
                                            .d_table = r(d_table),
                                            .zero_row = has_zero_row ? zero_row : -1,
                                            .first_row = run.first,
                                            .batch_rows = lookup.s.tokens.rows,
                                            .accumulate = r.adds(new_gradient) || run.at > 0});
      }
    });
  }

  void record_position_gradient(Tape& t, Value d_y) const {
    bool new_gradient = false;
    const Value d_positions = t.parameter_gradient(s.positions_table, &new_gradient);
    t.record("position_backward", {d_y}, {d_positions}, [=, lookup = *this](const Run& r) {
      for (const RowRun& run : lookup.own) {
        kernels::embedding_backward(r.ctx,
                                    {.forward = lookup.bind(r, run),
                                     .d_y = r.at(d_y, run.at * lookup.args.cols),
                                     .cu = r(lookup.s.tokens.cu),
                                     .sequences = lookup.s.tokens.sequences,
                                     .d_position_table = r(d_positions),
                                     .first_row = run.first,
                                     .batch_rows = lookup.s.tokens.rows,
                                     .accumulate_positions = r.adds(new_gradient) || run.at > 0});
      }
    });
  }
};

// The rows of all ranks from this rank's part of the table, and of their sum its own.
Value looked_up(Tape& tape, const Lookup& l) {
  const Tape::Info table = tape.info(l.s.table);
  const EmbeddingArgs args{.rows = l.args.rows * l.s.vocabulary.parts(),
                           .cols = table.cols,
                           .vocab = table.rows,
                           .first_id = l.first_id,
                           .dtype = table.dtype};
  const Value x = tape.make("looked_up", table.dtype, args.rows, args.cols);
  tape.record("embedding_lookup", {l.s.table}, {x}, [=](const Run& r) {
    for (const RowRun& run : l.all) {
      EmbeddingArgs a = args;
      a.rows = run.rows;
      a.ids = r(l.s.tokens.ids + run.first);
      a.table = r(l.s.table);
      a.y = r.at(x, run.at * args.cols);
      kernels::embedding_forward(r.ctx, a);
    }
  });
  return scatter_sum_rows(tape, l.s.vocabulary, x);
}

// The own rows of a table that is packed.
Value unpacked(Tape& tape, const Lookup& l, const kernels::PackedView& table) {
  const Value x = tape.make("looked_up", DType::f32, l.args.rows, table.k);
  tape.record("embedding_unpack", {}, {x}, [=](const Run& r) {
    for (const RowRun& run : l.own) {
      kernels::unpack_rows(table, r(l.s.tokens.ids + run.first), run.rows,
                           static_cast<float*>(r.at(x, run.at * table.k)));
    }
  });
  return x;
}

}  // namespace

Value embedding(Tape& tape, const EmbeddingSpec& spec) {
  Lookup l{.s = spec, .args = {}, .own = {}, .all = {}};
  if (l.s.rows == 0) l.s.rows = l.s.tokens.rows;
  const float p = tape.training() ? l.s.dropout : 0.0f;
  const Tape::Info ti = tape.info(l.s.table);
  const int parts = l.s.vocabulary.parts(), part = l.s.vocabulary.part();
  l.own = tape.row_runs(l.s.first_row, l.s.rows);
  l.all = tape.row_runs(l.s.first_row - part * l.s.rows, l.s.rows * parts);
  l.first_id = part * ti.rows;
  l.args = {.rows = l.s.rows,
            .cols = ti.cols,
            .vocab = ti.rows,
            .max_positions = l.s.positions_table ? tape.info(l.s.positions_table).rows : 0,
            .first_id = l.first_id,
            .dtype = ti.dtype,
            .scale = l.s.scale,
            .dropout = p,
            .rng = p > 0 ? tape.random(MaskKind::embedding) : RngRef{}};
  // Each row's embedding: of the table; or by row, where ranks have parts of it or it is packed.
  const kernels::PackedWeights* const packed = tape.packed_table(l.s.table);
  const bool by_row = parts > 1 || packed != nullptr;
  const Value from = packed != nullptr ? unpacked(tape, l, packed->view())
                     : by_row          ? looked_up(tape, l)
                                       : l.s.table;
  const Value y = tape.make("embedding", ti.dtype, l.s.rows, ti.cols);
  tape.record(
      "embedding", {from, l.s.positions_table}, {y},
      [=](const Run& r) {
        for (const RowRun& run : l.own) {
          EmbeddingArgs a = l.bind(r, run);
          a.table = by_row ? r.at(from, run.at * a.cols) : r(from);
          if (by_row) {
            a.ids = nullptr;
            a.vocab = a.rows;
          }
          a.y = r.at(y, run.at * a.cols);
          kernels::embedding_forward(r.ctx, a);
        }
      },
      [=](Tape& t) {
        const Value d_y = t.gradient(y);
        if (l.s.positions_table && t.info(l.s.positions_table).parameter >= 0)
          l.record_position_gradient(t, d_y);
        l.record_table_gradient(t, gather_rows(t, l.s.vocabulary, d_y));
      });
  return y;
}

}  // namespace saturate::ops
