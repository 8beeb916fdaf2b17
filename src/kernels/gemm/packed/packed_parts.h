// SPDX-License-Identifier: Apache-2.0
// Products of f32 by tiles of bf16: each number is the sum of three of them (split_row()), of whose nine products the six
// that f32 can hold are taken. What is left out is below 2^-25 of |x w|. `Tiles` and `Sums` are those of
// packed_tiles.h. In an unnamed namespace: each file that includes this is compiled for a processor of its own.
#pragma once
#include "kernels/gemm/packed/packed_tiles.h"

namespace saturate::kernels::packed {
namespace {

// Of k at a time, whose parts of two panels (24 KiB) stay in the first-level cache while all rows pass.
constexpr int64_t kPartsK = 128, kPartsPanel = kPartsK / 2 * kLine;
static_assert(kPartsRoom == 3 * 2 * kPartsPanel);

// Adds `steps` tiles of k to the sums of two panels, whose parts lie in b.room: tiles 0 to 3 are sums as in multiply_tiles(), 4 and 5
// hold one part of x, 6 and 7 one of the weights, in an order in which either stays from one product to the next.
template <class Tiles, bool kLower, bool kTwo>
void add_parts(Tiles& t, const Block& b, const Place& at, int64_t first, int64_t steps,
               float* sums) {
  const char* const upper = static_cast<const char*>(b.x) + at.row * b.x_bytes + 2 * first;
  const char* const lower = upper + at.upper * b.x_bytes;
  const auto x = [&](int part, int64_t s) {
    t.template load<4>(upper + part * b.x_part + s * kLine, b.x_bytes);
    if constexpr (kLower) t.template load<5>(lower + part * b.x_part + s * kLine, b.x_bytes);
  };
  const auto w = [&](int part, int64_t s) {
    const char* const from = b.room + part * 2 * kPartsPanel + s * kTileSteps * kLine;
    t.template load<6>(from, kLine);
    if constexpr (kTwo) t.template load<7>(from + kPartsPanel, kLine);
  };
  const auto dots = [&] {
    t.template dot<0, 4, 6>();
    if constexpr (kTwo) t.template dot<1, 4, 7>();
    if constexpr (kLower) t.template dot<2, 5, 6>();
    if constexpr (kLower && kTwo) t.template dot<3, 5, 7>();
  };
  const auto begin = [&]<int T>() {
    if (first == 0) {
      t.template zero<T>();
    } else {
      t.template load<T>(reinterpret_cast<const char*>(sums + T * kTileSums), kLine);
    }
  };
  begin.template operator()<0>();
  if constexpr (kTwo) begin.template operator()<1>();
  if constexpr (kLower) begin.template operator()<2>();
  if constexpr (kLower && kTwo) begin.template operator()<3>();
  for (int64_t s = 0; s < steps; ++s) {
    x(0, s), w(2, s), dots();
    w(1, s), dots();
    x(1, s), dots();
    w(0, s), dots();
    x(2, s), dots();
    x(0, s), dots();
  }
  t.template store<0>(sums);
  if constexpr (kTwo) t.template store<1>(sums + kTileSums);
  if constexpr (kLower) t.template store<2>(sums + 2 * kTileSums);
  if constexpr (kLower && kTwo) t.template store<3>(sums + 3 * kTileSums);
}

// Panels are split when their turn comes: those that lay split would take half as many bytes more, which few rows wait for. Sums
// of 32 rows by two panels wait in the room, behind the parts, for the next of k.
template <class Tiles, class Sums>
void multiply_by_parts(Tiles& t, const Block& b) {
  constexpr int64_t kRows = 2 * kTileRows;
  auto* const sums = reinterpret_cast<float*>(b.room + kPartsRoom);
  int64_t configured = 0;
  for (int64_t panel = b.first; panel < b.last; panel += 2) {
    const int64_t panels = b.last - panel < 2 ? 1 : 2;
    for (int64_t first = 0; first < b.steps; first += kPartsK) {
      const int64_t count = b.steps - first < kPartsK ? b.steps - first : kPartsK;
      const int64_t steps = (count + 31) / 32;
      for (int64_t p = 0; p < panels; ++p) {
        split_panel(b.w + ((panel + p) * b.steps + first) * kLine, count, 2 * kPartsPanel,
                    b.room + p * kPartsPanel);
      }
      for (int64_t row = 0; row < b.rows; row += kRows) {
        const int64_t rows = b.rows - row < kRows ? b.rows - row : kRows;
        const int64_t upper = rows < kTileRows ? rows : kTileRows;
        const Place at{.row = row, .upper = upper, .lower = rows - upper, .panel = panel};
        float* const to = sums + row / kRows * 4 * kTileSums;
        if (rows != configured) t.configure(upper, at.lower);
        configured = rows;
        if (panels == 2) {
          at.lower > 0 ? add_parts<Tiles, true, true>(t, b, at, first, steps, to)
                       : add_parts<Tiles, false, true>(t, b, at, first, steps, to);
        } else {
          at.lower > 0 ? add_parts<Tiles, true, false>(t, b, at, first, steps, to)
                       : add_parts<Tiles, false, false>(t, b, at, first, steps, to);
        }
        if (first + count < b.steps) continue;
        finish_rows<Sums>(b, row, upper, panel, panels, to);
        finish_rows<Sums>(b, row + upper, at.lower, panel, panels, to + 2 * kTileSums);
      }
    }
  }
}

}  // namespace
}  // namespace saturate::kernels::packed
