// SPDX-License-Identifier: Apache-2.0
// Products of packed int8 weights with AMX. Compiled for such processors: see packed_block.h.
//
// A tile is 16 rows of 64 bytes, and a panel's 64-byte lines (16 columns by 4 of k) lie as the
// instruction wants its second operand: 16 lines are one tile as they are, 64 of k.
#if defined(__x86_64__)
#include "kernels/gemm/packed/packed_s8.h"

namespace saturate::kernels::packed {
namespace {

constexpr int64_t kTileRows = 16, kTileBytes = 1024, kTileSteps = 16;

struct alignas(64) Shapes {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};

// Sums 0 to 3 (rows 0 to 15 and 16 on, by two panels), x 4 and 5, weights 6 and 7.
void configure(int64_t upper, int64_t lower) {
  Shapes s;
  for (int t = 0; t < 8; ++t) s.row_bytes[t] = 64;
  s.rows[0] = s.rows[1] = s.rows[4] = static_cast<uint8_t>(upper);
  s.rows[2] = s.rows[3] = s.rows[5] = static_cast<uint8_t>(lower > 0 ? lower : 1);
  s.rows[6] = s.rows[7] = 16;
  _tile_loadconfig(&s);
}

struct Place {
  int64_t row, upper, lower;  // rows of the first tile and of the second, which may have none
  int64_t panel;
};

template <bool kLower, bool kTwo>
void multiply_tiles(const Block& b, const Place& at, int32_t* sums) {
  const int64_t panel_bytes = b.steps * kLine;
  const char* const upper = static_cast<const char*>(b.x) + at.row * b.x_bytes;
  const char* const lower = upper + at.upper * b.x_bytes;
  const char* const w = b.w + at.panel * panel_bytes;
  _tile_zero(0);
  if constexpr (kTwo) _tile_zero(1);
  if constexpr (kLower) _tile_zero(2);
  if constexpr (kLower && kTwo) _tile_zero(3);
  const auto x_stride = static_cast<size_t>(b.x_bytes);
  for (int64_t s = 0; s < b.steps; s += kTileSteps) {
    _tile_loadd(4, upper + s * 4, x_stride);
    _tile_loadd(6, w + s * kLine, 64);
    _tile_dpbusd(0, 4, 6);
    if constexpr (kTwo) {
      _tile_loadd(7, w + panel_bytes + s * kLine, 64);
      _tile_dpbusd(1, 4, 7);
    }
    if constexpr (kLower) {
      _tile_loadd(5, lower + s * 4, x_stride);
      _tile_dpbusd(2, 5, 6);
      if constexpr (kTwo) _tile_dpbusd(3, 5, 7);
    }
  }
  constexpr int64_t kSums = kTileBytes / 4;
  _tile_stored(0, sums, 64);
  if constexpr (kTwo) _tile_stored(1, sums + kSums, 64);
  if constexpr (kLower) _tile_stored(2, sums + 2 * kSums, 64);
  if constexpr (kLower && kTwo) _tile_stored(3, sums + 3 * kSums, 64);
}

void finish_rows(const Block& b, int64_t row, int64_t rows, int64_t panel, int64_t panels,
                 const int32_t* sums) {
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t p = 0; p < panels; ++p) {
      __m512i sum = _mm512_load_si512(sums + p * kTileBytes / 4 + r * 16);
      finish<Sums8>(b, row + r, (panel + p) * kPanel, &sum);
    }
    if (b.activate != nullptr) {
      const int64_t column = panel * kPanel, most = b.n - column;
      b.activate(b.y + (row + r) * b.ldy + column, most < panels * kPanel ? most : panels * kPanel);
    }
  }
}

void multiply_rows(const Block& b, Place at, int64_t last) {
  alignas(64) int32_t sums[kTileBytes];
  for (; at.panel < last; at.panel += 2) {
    const int64_t panels = last - at.panel < 2 ? 1 : 2;
    if (panels == 2) {
      at.lower > 0 ? multiply_tiles<true, true>(b, at, sums)
                   : multiply_tiles<false, true>(b, at, sums);
    } else {
      at.lower > 0 ? multiply_tiles<true, false>(b, at, sums)
                   : multiply_tiles<false, false>(b, at, sums);
    }
    finish_rows(b, at.row, at.upper, at.panel, panels, sums);
    finish_rows(b, at.row + at.upper, at.lower, at.panel, panels, sums + kTileBytes / 2);
  }
}

}  // namespace

// A few panels are held in the cache while all rows pass.
void s8_amx(const Block& b) {
  constexpr int64_t kPanels = 8, kRows = 2 * kTileRows;
  int64_t configured = 0;
  for (int64_t first = b.first; first < b.last; first += kPanels) {
    const int64_t last = first + kPanels < b.last ? first + kPanels : b.last;
    for (int64_t row = 0; row < b.rows; row += kRows) {
      const int64_t rows = b.rows - row < kRows ? b.rows - row : kRows;
      const int64_t upper = rows < kTileRows ? rows : kTileRows;
      if (rows != configured) configure(upper, rows - upper);
      configured = rows;
      multiply_rows(b, {.row = row, .upper = upper, .lower = rows - upper, .panel = first}, last);
    }
  }
  _tile_release();
}

}  // namespace saturate::kernels::packed
#endif  // x86-64
