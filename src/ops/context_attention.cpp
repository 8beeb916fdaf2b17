// SPDX-License-Identifier: Apache-2.0
#include "ops/context_attention.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>

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

}  // namespace saturate::ops
