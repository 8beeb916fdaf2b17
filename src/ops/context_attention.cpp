// SPDX-License-Identifier: Apache-2.0
#include "ops/context_attention.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <numeric>

#include "kernels/elementwise/elementwise.h"
#include "ops/row_chunks.h"

namespace saturate::ops {
namespace {

using Blocks = std::vector<int64_t>;

// A matrix (rows, columns) and the same cut by columns, part under part (rows * parts, columns /
// parts): part p of every block side by side.
struct Parts {
  Blocks blocks;
  int64_t parts = 1;
};

enum class Direction : uint8_t { cut, join };

// What a direction makes of x, with the other direction as its backward pass.
Value record(Tape& t, const Parts& p, Direction direction, Value x) {
  const bool cut = direction == Direction::cut;
  const Tape::Info i = t.info(x);
  const int64_t rows = cut ? i.rows : i.rows / p.parts, cols = cut ? i.cols : i.cols * p.parts;
  const char* const name = cut ? "cut_heads" : "join_heads";
  const Value y = cut ? t.make(name, i.dtype, rows * p.parts, cols / p.parts)
                      : t.make(name, i.dtype, rows, cols);
  t.record(
      name, {x}, {y},
      [=](const Run& r) {
        const auto bytes = [&](int64_t n) { return static_cast<size_t>(n) * size_of(i.dtype); };
        char* const wide = r.as<char>(cut ? x : y);
        char* const tall = r.as<char>(cut ? y : x);
        for (int64_t part = 0; part < p.parts; ++part) {
          int64_t column = 0;
          for (const int64_t block : p.blocks) {
            const int64_t width = block / p.parts;
            char* const in_wide = wide + bytes(column + part * width);
            char* const in_tall = tall + bytes(part * rows * (cols / p.parts) + column / p.parts);
            const size_t wide_pitch = bytes(cols), tall_pitch = bytes(cols / p.parts);
            if (cut) {
              copy_rows(r.ctx, in_tall, tall_pitch, in_wide, wide_pitch, bytes(width),
                        static_cast<size_t>(rows));
            } else {
              copy_rows(r.ctx, in_wide, wide_pitch, in_tall, tall_pitch, bytes(width),
                        static_cast<size_t>(rows));
            }
            column += block;
          }
        }
      },
      [=](Tape& tape) {
        tape.add_gradient(
            x, record(tape, p, cut ? Direction::join : Direction::cut, tape.gradient(y)));
      });
  return y;
}

Parts checked(const char* op, const GroupOfRanks& ranks, int64_t cols, Blocks blocks) {
  const int64_t n = ranks.group.size();
  const auto divides = [n](int64_t width) { return width % n == 0; };
  if (std::accumulate(blocks.begin(), blocks.end(), int64_t{0}) != cols ||
      !std::all_of(blocks.begin(), blocks.end(), divides)) {
    throw Error(Errc::invalid_argument, op,
                fmt::format("blocks of {} columns are to be cut into {} parts each, and there are "
                            "{} columns: name each column once, in multiples of the parts",
                            fmt::join(blocks, ", "), n, cols));
  }
  return {std::move(blocks), n};
}

using Chunks = std::array<RowChunk, 2>;
using Pair = std::array<Value, 2>;

size_t bytes_of(int64_t elements, DType type) {
  return static_cast<size_t>(elements) * size_of(type);
}

// A rank's rows in one matrix, and by chunks behind their padding, which is zero; what is behind the
// first q_cols columns is a matrix of its own.
struct Pieces {
  Value whole = {};
  Pair chunks = {};
  Value rest = {};
};

void copy_pieces(const Run& r, const Tape::Info& whole, int64_t q_cols, const Chunks& chunks,
                 const Pieces& p, bool cut) {
  const auto copy = [&](void* piece, int64_t cols, int64_t row, int64_t column, int64_t rows) {
    const size_t width = bytes_of(cols, whole.dtype), pitch = bytes_of(whole.cols, whole.dtype);
    void* const in_whole = r.at(p.whole, row * whole.cols + column);
    const auto n = static_cast<size_t>(rows);
    cut ? copy_rows(r.ctx, piece, width, in_whole, pitch, width, n)
        : copy_rows(r.ctx, in_whole, pitch, piece, width, width, n);
  };
  int64_t row = 0;
  for (size_t i = 0; i < 2; ++i) {
    const RowChunk& c = chunks[i];
    const int64_t behind = c.padding + c.rows;
    if (cut) {
      fill_bytes(r.ctx, r(p.chunks[i]), 0, bytes_of(c.padding * q_cols, whole.dtype));
      fill_bytes(r.ctx, r.at(p.chunks[i], behind * q_cols), 0,
                 bytes_of((c.padded() - behind) * q_cols, whole.dtype));
    }
    copy(r.at(p.chunks[i], c.padding * q_cols), q_cols, row, 0, c.rows);
    row += c.rows;
  }
  if (p.rest) copy(r(p.rest), whole.cols - q_cols, 0, q_cols, whole.rows);
}

Pair make_chunks(Tape& t, const char* name, const Tape::Info& whole, int64_t cols,
                 const Chunks& chunks) {
  return {t.make(name, whole.dtype, chunks[0].padded(), cols),
          t.make(name, whole.dtype, chunks[1].padded(), cols)};
}

Pieces cut_rows(Tape& t, Value x, int64_t q_cols, const Chunks& chunks) {
  const Tape::Info i = t.info(x);
  Pieces p{.whole = x, .chunks = make_chunks(t, "queries", i, q_cols, chunks)};
  if (i.cols > q_cols) p.rest = t.make("keys", i.dtype, i.rows, i.cols - q_cols);
  t.record(
      "cut_rows", {x}, {p.chunks[0], p.chunks[1], p.rest},
      [=](const Run& r) { copy_pieces(r, i, q_cols, chunks, p, true); },
      [=](Tape& tape) {
        const Pieces d{.whole = tape.make("d_rows", i.dtype, i.rows, i.cols),
                       .chunks = {tape.gradient(p.chunks[0]), tape.gradient(p.chunks[1])},
                       .rest = tape.gradient(p.rest)};
        tape.record("join_rows", {d.chunks[0], d.chunks[1], d.rest}, {d.whole},
                    [=](const Run& r) { copy_pieces(r, i, q_cols, chunks, d, false); });
        tape.add_gradient(x, d.whole);
      });
  return p;
}

Value join_rows(Tape& t, const Pair& parts, const Chunks& chunks) {
  Tape::Info i = t.info(parts[0]);
  i.rows = chunks[0].rows + chunks[1].rows;
  const Pieces p{.whole = t.make("joined_rows", i.dtype, i.rows, i.cols), .chunks = parts};
  t.record(
      "join_rows", {parts[0], parts[1]}, {p.whole},
      [=](const Run& r) { copy_pieces(r, i, i.cols, chunks, p, false); },
      [=](Tape& tape) {
        const Pieces d{.whole = tape.gradient(p.whole),
                       .chunks = make_chunks(tape, "d_chunk", i, i.cols, chunks)};
        tape.record("cut_rows", {d.whole}, {d.chunks[0], d.chunks[1]},
                    [=](const Run& r) { copy_pieces(r, i, i.cols, chunks, d, true); });
        for (size_t k = 0; k < 2; ++k) tape.set_gradient(parts[k], d.chunks[k]);
      });
  return p.whole;
}

// The rows of all ranks as a gather brings them, to those that each chunk sees, in order: the first
// seen[i] of the micro-batch. Backward the two gradients' sum, in the order of ranks.
Pair keys_in_order(Tape& t, Value gathered, int64_t parts, std::array<int64_t, 2> seen) {
  const Tape::Info i = t.info(gathered);
  const int64_t rows = i.rows / (2 * parts), chunk = rows * i.cols;
  const Pair keys{t.make("keys_in_order", i.dtype, seen[0], i.cols),
                  t.make("keys_in_order", i.dtype, seen[1], i.cols)};
  const size_t pitch = bytes_of(i.cols, i.dtype);
  // Calls f(element in gathered, element in order, whether chunk 0 sees it, chunk 1).
  const auto each = [=](const auto& f) {
    for (int64_t n = 0; n < 2 * parts; ++n) {
      const int64_t place = n < parts ? 2 * n : 2 * (2 * parts - 1 - n) + 1;
      f(place * chunk, n * chunk, n * rows < seen[0], n * rows < seen[1]);
    }
  };
  const auto copy = [=](const Run& r, void* to, const void* from) {
    copy_rows(r.ctx, to, pitch, from, pitch, pitch, static_cast<size_t>(rows));
  };
  t.record(
      "keys_in_order", {gathered}, {keys[0], keys[1]},
      [=](const Run& r) {
        each([&](int64_t from, int64_t to, bool first, bool second) {
          if (first) copy(r, r.at(keys[0], to), r.at(gathered, from));
          if (second) copy(r, r.at(keys[1], to), r.at(gathered, from));
        });
      },
      [=](Tape& tape) {
        const Pair d{tape.gradient(keys[0]), tape.gradient(keys[1])};
        const Value sum = tape.make("d_keys", i.dtype, i.rows, i.cols);
        tape.record("keys_by_rank", {d[0], d[1]}, {sum}, [=](const Run& r) {
          each([&](int64_t to, int64_t from, bool first, bool second) {
            if (first && second) {
              kernels::add(r.ctx, {.a = r.at(d[0], from),
                                   .b = r.at(d[1], from),
                                   .y = r.at(sum, to),
                                   .count = chunk,
                                   .dtype = i.dtype});
            } else if (second || first) {
              copy(r, r.at(sum, to), r.at(d[second ? 1 : 0], from));
            } else {
              fill_bytes(r.ctx, r.at(sum, to), 0, bytes_of(chunk, i.dtype));
            }
          });
        });
        tape.add_gradient(gathered, sum);
      });
  return keys;
}

}  // namespace

Value rows_to_heads(Tape& tape, const GroupOfRanks& ranks, Value x, Blocks blocks) {
  if (ranks.parts() == 1) return x;
  const Tape::Info i = tape.info(x);
  const Parts p = checked("rows_to_heads", ranks, i.cols, std::move(blocks));
  const Blocks each(static_cast<size_t>(p.parts), i.rows);
  return exchange_rows(tape, ranks, record(tape, p, Direction::cut, x), each, each);
}

Value heads_to_rows(Tape& tape, const GroupOfRanks& ranks, Value x, Blocks blocks) {
  if (ranks.parts() == 1) return x;
  const Tape::Info i = tape.info(x);
  const int64_t n = ranks.parts();
  const Parts p = checked("heads_to_rows", ranks, i.cols * n, std::move(blocks));
  if (i.rows % n != 0) {
    throw Error(Errc::invalid_argument, "heads_to_rows",
                fmt::format("{} rows cannot be cut into {} equal parts: give a multiple of the "
                            "ranks",
                            i.rows, n));
  }
  const Blocks each(static_cast<size_t>(n), i.rows / n);
  return record(tape, p, Direction::join, exchange_rows(tape, ranks, x, each, each));
}

Value chunked_attention(Tape& tape, const GroupOfRanks& ranks, Value q, Value kv,
                        AttentionSpec spec, const int32_t* chunk_offsets) {
  const int64_t parts = ranks.parts(), rows = tape.info(q).rows * parts;
  const Chunks chunks = row_chunks(rows, parts, ranks.part());
  const Pieces own = cut_rows(tape, q, spec.heads * spec.head_size, chunks);
  const Value all = gather_rows(tape, ranks, kv ? kv : own.rest);
  const int64_t key_rows = tape.info(all).rows;
  const auto seen = [&](const RowChunk& c) { return spec.causal ? c.first + c.rows : key_rows; };
  const Pair keys = keys_in_order(tape, all, parts, {seen(chunks[0]), seen(chunks[1])});
  std::vector<AttentionSpec> calls;
  for (size_t i = 0; i < 2; ++i) {
    const RowChunk& c = chunks[i];
    AttentionSpec& s = calls.emplace_back(spec);
    s.q = {own.chunks[i], 0};
    s.k = {keys[i], 0};
    s.v = {keys[i], spec.kv_heads * spec.head_size};
    s.cu_q = chunk_offsets;
    chunk_offsets += spec.sequences + 1;
    if (spec.causal) s.cu_k = chunk_offsets;
    chunk_offsets += spec.sequences + 1;
    s.max_q = std::min(spec.max_q, c.padded());
    s.max_k = std::min(spec.max_k, seen(c));
    s.ends_meet = spec.causal;
    s.first_row = c.first - c.padding;
    // The two together are about as much on every rank. What is computed again depends on it, and
    // must be the same on all.
    s.flops = attention_flops(spec, rows, key_rows) / static_cast<double>(2 * parts);
  }
  const std::vector<Value> heads = attention(tape, calls);
  return join_rows(tape, {heads[0], heads[1]}, chunks);
}

}  // namespace saturate::ops
