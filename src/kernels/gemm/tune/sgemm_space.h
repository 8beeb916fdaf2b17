// SPDX-License-Identifier: Apache-2.0
// The parameter sets of the tiled fp32 rung: all of them, why one is refused, and how fast a model
// without timing thinks it is. No CUDA here.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/gemm/sgemm/sgemm_tiled_memory.h"

namespace saturate::kernels {

// A block computes (bm, bn) of D in steps of bk; a warp (wm, wn); a thread (tm, tn).
struct TileSet {
  int bm = 0, bn = 0, bk = 0, tm = 0, tn = 0, wm = 0, wn = 0, stages = 0;
  int threads() const noexcept { return wm * wn == 0 ? 0 : bm / wm * (bn / wn) * 32; }
  int64_t shared_bytes() const noexcept { return sgemm_tiled_shared_bytes(bm, bn, bk, stages); }
  friend bool operator==(const TileSet&, const TileSet&) = default;
};

// "128x128x16 thread 8x8 warp 64x32 stages 3", and back; empty when `text` is no such thing.
std::string text_of(const TileSet& tile);
std::optional<TileSet> parse_tile_set(std::string_view text);

// What a chip allows and how fast it is. The defaults are those of one H200 (CUDA programming
// guide, table of technical specifications for 9.0; clock and bandwidth as measured).
struct ChipLimits {
  int multiprocessors = 132;
  int64_t shared_per_block = 232448, shared_per_multiprocessor = 233472;
  int registers_per_multiprocessor = 65536, threads_per_multiprocessor = 2048;
  int64_t l2_bytes = int64_t{60} << 20;
  double clock_ghz = 1.75;        // under fp32 load
  double memory_gb_per_s = 4300;  // device memory
  int fma_per_clock = 128;        // fp32, a multiprocessor
  friend bool operator==(const ChipLimits&, const ChipLimits&) = default;
};

// Registers a thread needs: accumulators, two sets of fragments, and what addresses take.
int estimated_registers(const TileSet& tile) noexcept;

// Blocks that fit on one multiprocessor at once by registers, shared memory and threads.
int resident_blocks(const TileSet& tile, const ChipLimits& chip) noexcept;

// Every combination of the parameters, valid or not, in a fixed order.
std::vector<TileSet> tile_grid();

// Why `tile` cannot run, with the numbers and the rule; "" when it can.
std::string tile_refusal(const TileSet& tile, const ChipLimits& chip);

// The valid ones of tile_grid().
std::vector<TileSet> valid_tiles(const ChipLimits& chip);

// Milliseconds of an (m, n, k) product by arithmetic alone: rounds of blocks, each step limited by
// instruction issue or, with few warps, by latency, barriers and the fetch of unrolled code; never
// less than the memory traffic.
double predict_sgemm_ms(const TileSet& tile, const ChipLimits& chip, int64_t m, int64_t n,
                        int64_t k) noexcept;

// The tile with the lowest prediction; ties go to the earlier one. `tiles` must not be empty.
const TileSet& best_by_model(const std::vector<TileSet>& tiles, const ChipLimits& chip, int64_t m,
                             int64_t n, int64_t k) noexcept;

}  // namespace saturate::kernels
