// SPDX-License-Identifier: Apache-2.0
// The loops of a product by tiles of 16 rows of 64 bytes: `Tiles` is the processor's, or the test's,
// `Sums` what ends a row of 16 sums. In an unnamed namespace: each file that includes this is compiled
// for a processor of its own.
//
// A panel's 64-byte lines (16 columns by 4 bytes of k) lie as the instruction wants its second operand: 16
// lines are one tile as they are.
#pragma once
#include "kernels/gemm/packed/packed_tile.h"

namespace saturate::kernels::packed {
namespace {

constexpr int64_t kTileRows = 16, kTileSteps = 16;
constexpr int64_t kTileSums = 256;

struct Place {
  int64_t row, upper, lower;  // rows of the first tile and of the second, which may have none
  int64_t panel;
};

// Sums in tiles 0 to 3 (rows 0 to 15 and 16 on, by two panels), x in 4 and 5, weights in 6 and 7.
template <class Tiles, bool kLower, bool kTwo>
void multiply_tiles(Tiles& t, const Block& b, const Place& at, typename Tiles::Sum* sums) {
  const int64_t panel_bytes = b.steps * kLine;
  const char* const upper = static_cast<const char*>(b.x) + at.row * b.x_bytes;
  const char* const lower = upper + at.upper * b.x_bytes;
  const char* const w = b.w + at.panel * panel_bytes;
  t.template zero<0>();
  if constexpr (kTwo) t.template zero<1>();
  if constexpr (kLower) t.template zero<2>();
  if constexpr (kLower && kTwo) t.template zero<3>();
  for (int64_t s = 0; s < b.steps; s += kTileSteps) {
    t.template load<4>(upper + s * 4, b.x_bytes);
    t.template load<6>(w + s * kLine, kLine);
    t.template dot<0, 4, 6>();
    if constexpr (kTwo) {
      t.template load<7>(w + panel_bytes + s * kLine, kLine);
      t.template dot<1, 4, 7>();
    }
    if constexpr (kLower) {
      t.template load<5>(lower + s * 4, b.x_bytes);
      t.template dot<2, 5, 6>();
      if constexpr (kTwo) t.template dot<3, 5, 7>();
    }
  }
  t.template store<0>(sums);
  if constexpr (kTwo) t.template store<1>(sums + kTileSums);
  if constexpr (kLower) t.template store<2>(sums + 2 * kTileSums);
  if constexpr (kLower && kTwo) t.template store<3>(sums + 3 * kTileSums);
}

template <class Sums, class Sum>
void finish_rows(const Block& b, int64_t row, int64_t rows, int64_t panel, int64_t panels,
                 const Sum* sums) {
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t p = 0; p < panels; ++p) {
      typename Sums::Acc sum = Sums::load_sums(sums + p * kTileSums + r * 16);
      finish<Sums>(b, row + r, (panel + p) * kPanel, &sum);
    }
    if (b.activate != nullptr) {
      const int64_t column = panel * kPanel, most = b.n - column;
      b.activate(b.y + (row + r) * b.ldy + column, most < panels * kPanel ? most : panels * kPanel);
    }
  }
}

template <class Tiles, class Sums>
void multiply_rows(Tiles& t, const Block& b, Place at, int64_t last) {
  alignas(64) typename Tiles::Sum sums[4 * kTileSums];
  for (; at.panel < last; at.panel += 2) {
    const int64_t panels = last - at.panel < 2 ? 1 : 2;
    if (panels == 2) {
      at.lower > 0 ? multiply_tiles<Tiles, true, true>(t, b, at, sums)
                   : multiply_tiles<Tiles, false, true>(t, b, at, sums);
    } else {
      at.lower > 0 ? multiply_tiles<Tiles, true, false>(t, b, at, sums)
                   : multiply_tiles<Tiles, false, false>(t, b, at, sums);
    }
    finish_rows<Sums>(b, at.row, at.upper, at.panel, panels, sums);
    finish_rows<Sums>(b, at.row + at.upper, at.lower, at.panel, panels, sums + 2 * kTileSums);
  }
}

// A few panels are held in the cache while all rows pass.
template <class Tiles, class Sums>
void multiply_by_tiles(Tiles& t, const Block& b) {
  constexpr int64_t kPanels = 8, kRows = 2 * kTileRows;
  int64_t configured = 0;
  for (int64_t first = b.first; first < b.last; first += kPanels) {
    const int64_t last = first + kPanels < b.last ? first + kPanels : b.last;
    for (int64_t row = 0; row < b.rows; row += kRows) {
      const int64_t rows = b.rows - row < kRows ? b.rows - row : kRows;
      const int64_t upper = rows < kTileRows ? rows : kTileRows;
      if (rows != configured) t.configure(upper, rows - upper);
      configured = rows;
      const Place at{.row = row, .upper = upper, .lower = rows - upper, .panel = first};
      multiply_rows<Tiles, Sums>(t, b, at, last);
    }
  }
}

}  // namespace
}  // namespace saturate::kernels::packed
