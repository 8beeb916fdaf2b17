// SPDX-License-Identifier: Apache-2.0
// The loops of a product with packed weights, for an instruction set `I`. Everything is in an unnamed
// namespace: each file that includes this is compiled for a processor of its own.
//
// An element of y is one accumulator that takes k in ascending order, whatever the tile it lies in: so
// no sum depends on how many rows are multiplied together. For f32, where a step is one fused
// multiply-add, all instruction sets round alike too; int8 is exact in i32.
#pragma once
#include "kernels/gemm/packed/packed_block.h"

namespace saturate::kernels::packed {
namespace {

// Adds bias and activation to one panel of a row and stores `count` of its columns.
template <class I>
inline void finish(const Block& b, int64_t row, int64_t column, typename I::Acc* sums) {
  constexpr int kFloats = kPanel / I::kWidth;
  float* const y = b.y + row * b.ldy + column;
  const int64_t count = b.n - column < kPanel ? b.n - column : kPanel;
  alignas(64) float bias[kPanel] = {}, whole[kPanel];
  const float* add = b.bias == nullptr ? bias : b.bias + column;
  if (b.bias != nullptr && count < kPanel) {
    for (int64_t c = 0; c < count; ++c) bias[c] = b.bias[column + c];
    add = bias;
  }
  float* const to = count < kPanel ? whole : y;
#pragma GCC unroll 2
  for (int i = 0; i < kFloats; ++i) {
    typename I::Float v = I::biased(b, row, column, i, sums, I::load_floats(add + i * I::kWidth));
    if (b.relu) v = I::relu(v);
    I::store(to + i * I::kWidth, v);
  }
  if (count < kPanel) {
    for (int64_t c = 0; c < count; ++c) y[c] = whole[c];
  }
}

inline int64_t row_at(const Block& b, int64_t i) { return b.row_of == nullptr ? i : b.row_of[i]; }

// R rows by P panels.
template <class I, int R, int P>
void tile(const Block& b, int64_t row, int64_t panel) {
  constexpr int V = I::kVectors;
  const int64_t panel_bytes = b.steps * kLine;
  const char* x[R];
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) x[r] = static_cast<const char*>(b.x) + row_at(b, row + r) * b.x_bytes;
  const char* w = b.w + panel * panel_bytes;
  typename I::Acc sums[R][P * V];
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 16
    for (int v = 0; v < P * V; ++v) sums[r][v] = I::zero();
  }
  for (int64_t s = 0; s < b.steps; ++s, w += kLine) {
    if constexpr (R > 1 && requires { I::kAhead; }) {
#pragma GCC unroll 4
      for (int p = 0; p < P; ++p) __builtin_prefetch(w + p * panel_bytes + I::kAhead);
    }
    // The fewer of the two operands are held, the others pass through one register; or weights are read where
    // they lie.
    if constexpr (R <= P * V && !requires { I::kWeightsInMemory; }) {
      typename I::Element element[R];
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) {
        element[r] = I::broadcast(x[r] + s * I::kElementBytes);
      }
#pragma GCC unroll 32
      for (int v = 0; v < P * V; ++v) {
        const typename I::Weights weights = I::load(w + v / V * panel_bytes, v % V);
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) {
          sums[r][v] = I::multiply_add(sums[r][v], element[r], weights);
        }
      }
    } else {
      typename I::Weights weights[P * V];
#pragma GCC unroll 16
      for (int v = 0; v < P * V; ++v) weights[v] = I::load(w + v / V * panel_bytes, v % V);
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) {
        const typename I::Element element = I::broadcast(x[r] + s * I::kElementBytes);
#pragma GCC unroll 16
        for (int v = 0; v < P * V; ++v) {
          sums[r][v] = I::multiply_add(sums[r][v], element, weights[v]);
        }
      }
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
    const int64_t at = row_at(b, row + r);
#pragma GCC unroll 16
    for (int p = 0; p < P; ++p) finish<I>(b, at, (panel + p) * kPanel, &sums[r][p * V]);
    if (b.activate != nullptr) {
      const int64_t column = panel * kPanel, most = b.n - column;
      b.activate(b.y + at * b.ldy + column, most < P * kPanel ? most : P * kPanel);
    }
  }
}

template <class I, int R, int P>
int64_t groups(const Block& b, int64_t row, int64_t panel, int64_t last) {
  for (; panel + P <= last; panel += P) tile<I, R, P>(b, row, panel);
  return panel;
}

// All of a block's rows times panels [first, last), where R is the most rows of a tile.
template <class I, int R>
void rows_of(const Block& b, int64_t row, int64_t first, int64_t last) {
  constexpr int P = I::template panels<R>();
  int64_t at = groups<I, R, P>(b, row, first, last);
  if constexpr (P > 4) at = groups<I, R, 4>(b, row, at, last);
  if constexpr (P > 2) at = groups<I, R, 2>(b, row, at, last);
  if constexpr (P > 1) groups<I, R, 1>(b, row, at, last);
}

template <class I>
void rows_at(const Block& b, int64_t row, int64_t rows, int64_t first, int64_t last) {
  if constexpr (I::kRows > 5) {
    if (rows == 6) return rows_of<I, 6>(b, row, first, last);
  }
  if constexpr (I::kRows > 4) {
    if (rows == 5) return rows_of<I, 5>(b, row, first, last);
  }
  if constexpr (I::kRows > 3) {
    if (rows == 4) return rows_of<I, 4>(b, row, first, last);
  }
  if constexpr (I::kRows > 2) {
    if (rows == 3) return rows_of<I, 3>(b, row, first, last);
  }
  if constexpr (I::kRows > 1) {
    if (rows == 2) return rows_of<I, 2>(b, row, first, last);
  }
  rows_of<I, 1>(b, row, first, last);
}

// A few panels are held in the cache while all rows pass; tiles of rows differ by one at most.
template <class I>
void multiply(const Block& b) {
  const int64_t tiles = (b.rows + I::kRows - 1) / I::kRows;
  constexpr int64_t kPanels = 8;
  for (int64_t first = b.first; first < b.last; first += kPanels) {
    const int64_t last = first + kPanels < b.last ? first + kPanels : b.last;
    for (int64_t t = 0; t < tiles; ++t) {
      const int64_t row = b.rows * t / tiles;
      rows_at<I>(b, row, b.rows * (t + 1) / tiles - row, first, last);
    }
  }
}

}  // namespace
}  // namespace saturate::kernels::packed
