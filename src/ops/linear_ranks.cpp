// SPDX-License-Identifier: Apache-2.0
#include "ops/linear_ranks.h"

#include <algorithm>
#include <limits>

#include "ops/linear.h"

namespace saturate::ops {
namespace {

constexpr int64_t kMostPieces = 4;

// Times of a rank of an NVLink host, in microseconds, for the choice of pieces alone. All ranks must
// choose alike, so only sizes that are equal on all enter.
class Times {
 public:
  Times(const Tape& tape, int64_t n, int64_t k)
      : device_(capability_of(tape.device())), n_(n), k_(k) {}

  static bool known(const Tape& tape) {
    return tape.device().is_cuda() && capability_of(tape.device()).major >= 9 &&
           size_of(tape.compute_type()) == 2;
  }
  // Products come in waves of one tile of 128 x 256 a multiprocessor, of which the last is full or
  // not: small pieces lose more.
  double product(int64_t rows) const {
    const int64_t tiles = ceiling(rows, 128) * ceiling(n_, 256);
    const double wave = 2.0 * 128 * 256 * static_cast<double>(k_) / kFlopsPerProcessor;
    return kLaunch + wave * static_cast<double>(ceiling(tiles, device_.multiprocessors));
  }
  // Beside a transfer, whose kernels take some of the multiprocessors.
  double product_beside(int64_t rows) const { return 1.15 * product(rows); }
  static double transfer(double bytes) { return 15 + bytes / 2.5e5; }

 private:
  static constexpr double kLaunch = 3, kFlopsPerProcessor = 4.5e6;  // H200: 600 TFLOP/s
  static int64_t ceiling(int64_t a, int64_t b) { return (a + b - 1) / b; }

  Capability device_;
  int64_t n_, k_;
};

double bytes_of(int64_t rows, int64_t cols, DType type) {
  return static_cast<double>(rows * cols) * static_cast<double>(size_of(type));
}

bool multiplies_own_first(const Tape& t, int64_t ranks, const Tape::Info& x, int64_t out) {
  if (!Times::known(t)) return false;
  const Times times(t, out, x.cols);
  const int64_t others = x.rows * (ranks - 1);
  const double transfer = Times::transfer(bytes_of(others, x.cols, x.dtype));
  return std::max(transfer, times.product_beside(x.rows)) + times.product(others) <
         transfer + times.product(x.rows * ranks);
}

bool divides(int64_t pieces, int64_t rows) { return rows % (8 * pieces) == 0; }

int64_t best_pieces(const Tape& t, int64_t ranks, const Tape::Info& x, int64_t out) {
  if (!Times::known(t)) return 1;
  const Times times(t, out, x.cols);
  const int64_t own = x.rows / ranks;
  const double bytes = bytes_of(own * (ranks - 1), out, x.dtype);
  int64_t best = 1;
  double least = std::numeric_limits<double>::infinity();
  for (int64_t pieces = 1; pieces <= kMostPieces; ++pieces) {
    if (!divides(pieces, own)) continue;
    double multiplied = 0, sent = 0;
    for (int64_t i = 0; i < pieces; ++i) {
      const int64_t rows = own / pieces;
      multiplied += pieces == 1 ? times.product(x.rows)
                                : static_cast<double>(ranks) *
                                      (i == 0 ? times.product(rows) : times.product_beside(rows));
      sent = std::max(sent, multiplied) + Times::transfer(bytes / static_cast<double>(pieces));
    }
    if (sent < least) least = sent, best = pieces;
  }
  return best;
}

}  // namespace

Value gather_linear(Tape& tape, const GroupOfRanks& ranks, Value x, Value w, Value bias,
                    int64_t pieces) {
  const Tape::Info i = tape.info(x);
  const int64_t out = tape.info(w).rows, parts = ranks.parts();
  const Value all = gather_rows(tape, ranks, x);
  if (parts == 1 || pieces == 1 || (pieces == 0 && !multiplies_own_first(tape, parts, i, out))) {
    return linear(tape, all, w, bias);
  }
  const int64_t before = ranks.part() * i.rows, behind = before + i.rows;
  const Value own = tape.make("linear", i.dtype, i.rows * parts, out);
  linear_rows(tape, x, w, bias, own, {{.to = before, .rows = i.rows}});
  const Value y = tape.alias("linear", own);
  std::vector<RowBlock> others;
  if (before > 0) others.push_back({.rows = before});
  if (behind < i.rows * parts)
    others.push_back({.from = behind, .to = behind, .rows = i.rows * parts - behind});
  linear_rows(tape, all, w, bias, y, others,
              [=](Tape& t) { linear_gradients(t, all, w, bias, t.gradient(y)); });
  return y;
}

Value linear_scatter(Tape& tape, const GroupOfRanks& ranks, Value x, Value w, int64_t pieces) {
  const Tape::Info i = tape.info(x);
  const int64_t out = tape.info(w).rows, parts = ranks.parts(), own = i.rows / parts;
  if (pieces == 0) pieces = best_pieces(tape, parts, i, out);
  while (pieces > 1 && (i.rows % parts != 0 || !divides(pieces, own))) --pieces;
  if (parts == 1 || pieces <= 1) return scatter_sum_rows(tape, ranks, linear(tape, x, w));
  const int64_t rows = own / pieces;
  Value y = tape.make("linear_scattered", i.dtype, own, out);
  for (int64_t piece = 0; piece < pieces; ++piece) {
    const Value terms = tape.make("linear_terms", i.dtype, rows * parts, out);
    std::vector<RowBlock> blocks;
    for (int64_t r = 0; r < parts; ++r)
      blocks.push_back({.from = r * own + piece * rows, .to = r * rows, .rows = rows});
    linear_rows(tape, x, w, {}, terms, blocks);
    if (piece > 0) y = tape.alias("linear_scattered", y);
    Tape::BackwardFn backward;
    if (piece + 1 == pieces) {
      backward = [=](Tape& t) {
        linear_gradients(t, x, w, {}, gather_rows(t, ranks, t.gradient(y)));
      };
    }
    scatter_sum_into(tape, ranks, terms, y, piece * rows, std::move(backward));
  }
  return y;
}

}  // namespace saturate::ops
