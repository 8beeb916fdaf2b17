// SPDX-License-Identifier: Apache-2.0
#include "kernels/gemm/tune/sgemm_space.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>

namespace saturate::kernels {
namespace {

constexpr int kBlockSides[] = {32, 64, 128, 256};
constexpr int kDepths[] = {8, 16, 32};
constexpr int kThreadRows[] = {4, 8, 16}, kThreadCols[] = {4, 8, 16};
constexpr int kWarpSides[] = {16, 32, 64, 128};
constexpr int kStages[] = {2, 3, 4};

bool is_power_of_two(int v) { return v > 0 && std::has_single_bit(static_cast<unsigned>(v)); }

// What the kernel's own static_assert demands (sgemm_tiled.cuh), one rule a line.
std::string shape_refusal(const TileSet& t) {
  for (const int v : {t.bm, t.bn, t.bk, t.tm, t.tn, t.wm, t.wn}) {
    if (v < 1) return "every size starts at 1";
  }
  if (t.bm % t.wm != 0 || t.bn % t.wn != 0) {
    return fmt::format("warp tile {}x{} does not divide block tile {}x{}", t.wm, t.wn, t.bm, t.bn);
  }
  if (t.wm % t.tm != 0 || t.wn % t.tn != 0) {
    return fmt::format("thread tile {}x{} does not divide warp tile {}x{}", t.tm, t.tn, t.wm, t.wn);
  }
  const int lane_rows = t.wm / t.tm, lane_cols = t.wn / t.tn;
  if (lane_rows * lane_cols != 32 || !is_power_of_two(lane_rows)) {
    return fmt::format("{}x{} threads cover a warp tile; a warp has 32", lane_rows, lane_cols);
  }
  if (t.wm % 8 != 0) return fmt::format("warp tile of {} rows; must be a multiple of 8", t.wm);
  if (t.tn % 4 != 0) return fmt::format("{} columns a thread; 16-byte loads need 4", t.tn);
  if (t.bk != 8 && t.bk != 16 && t.bk != 32 && t.bk != 64) {
    return fmt::format("depth {}; must be 8, 16, 32 or 64 (the permutation of chunks)", t.bk);
  }
  if (t.stages < 2)
    return fmt::format("{} stages; a copy needs a second one to run ahead", t.stages);
  return "";
}

// Every thread copies whole 16-byte chunks, the same number, in a column of its own.
std::string copy_refusal(const TileSet& t) {
  const int threads = t.threads(), chunks = t.bk / 4, across = t.bn / 4;
  if (threads % chunks != 0 || t.bm * chunks % threads != 0) {
    return fmt::format("{} threads cannot share {} chunks of A evenly", threads, t.bm * chunks);
  }
  if (threads % across != 0 || t.bn * chunks % threads != 0 || t.bk % (threads / across) != 0) {
    return fmt::format("{} threads cannot share {} chunks of B, {} in a row, evenly", threads,
                       t.bn * chunks, across);
  }
  return "";
}

int round_up(int v, int to) { return (v + to - 1) / to * to; }

}  // namespace

std::string text_of(const TileSet& t) {
  return fmt::format("{}x{}x{} thread {}x{} warp {}x{} stages {}", t.bm, t.bn, t.bk, t.tm, t.tn,
                     t.wm, t.wn, t.stages);
}

std::optional<TileSet> parse_tile_set(std::string_view text) {
  TileSet t;
  const std::string copy(text);
  if (std::sscanf(copy.c_str(), "%dx%dx%d thread %dx%d warp %dx%d stages %d", &t.bm, &t.bn, &t.bk,
                  &t.tm, &t.tn, &t.wm, &t.wn, &t.stages) != 8) {
    return {};
  }
  if (text_of(t) != text) return {};
  return t;
}

int estimated_registers(const TileSet& t) noexcept { return t.tm * t.tn + 4 * t.tm + t.tn + 40; }

int resident_blocks(const TileSet& t, const ChipLimits& chip) noexcept {
  const int threads = t.threads();
  if (threads < 1) return 0;
  const int registers = round_up(std::min(estimated_registers(t), 255), 8);
  const auto by_shared =
      static_cast<int>(chip.shared_per_multiprocessor / (t.shared_bytes() + 1024));
  return std::min({chip.registers_per_multiprocessor / (registers * threads), by_shared,
                   chip.threads_per_multiprocessor / threads, 32});
}

std::vector<TileSet> tile_grid() {
  std::vector<TileSet> all;
  for (const int bm : kBlockSides)
    for (const int bn : kBlockSides)
      for (const int bk : kDepths)
        for (const int tm : kThreadRows)
          for (const int tn : kThreadCols)
            for (const int wm : kWarpSides)
              for (const int wn : kWarpSides)
                for (const int stages : kStages)
                  all.push_back({bm, bn, bk, tm, tn, wm, wn, stages});
  return all;
}

std::string tile_refusal(const TileSet& t, const ChipLimits& chip) {
  if (std::string why = shape_refusal(t); !why.empty()) return why;
  const int threads = t.threads();
  if (threads > 1024) return fmt::format("{} threads; a block has at most 1024", threads);
  if (std::string why = copy_refusal(t); !why.empty()) return why;
  if (threads < 64) return fmt::format("{} threads; fewer than 2 warps hide no latency", threads);
  const int registers = estimated_registers(t);
  if (registers > 255) {
    return fmt::format("about {} registers a thread; at most 255, more would spill", registers);
  }
  if (round_up(registers, 8) * threads > chip.registers_per_multiprocessor) {
    return fmt::format("about {} registers x {} threads; a multiprocessor has {}", registers,
                       threads, chip.registers_per_multiprocessor);
  }
  if (t.shared_bytes() > chip.shared_per_block) {
    return fmt::format("{} bytes of shared memory; a block has at most {}", t.shared_bytes(),
                       chip.shared_per_block);
  }
  // Shared-memory reads a multiply-add: below 8x4 they take longer than the arithmetic.
  if (t.tm * t.tn < 32) {
    return fmt::format("thread tile {}x{}; below 8x4 shared memory limits", t.tm, t.tn);
  }
  const int longer = std::max(t.wm, t.wn), shorter = std::min(t.wm, t.wn);
  if (longer > 2 * shorter) {
    return fmt::format("warp tile {}x{}; longer than 2:1 reads more shared memory than a square",
                       t.wm, t.wn);
  }
  if (std::max(t.bm, t.bn) > 4 * std::min(t.bm, t.bn)) {
    return fmt::format("block tile {}x{}; longer than 4:1 reads more of L2 than a square", t.bm,
                       t.bn);
  }
  const int warps = resident_blocks(t, chip) * threads / 32;
  if (warps < 4) {
    return fmt::format("{} warps on a multiprocessor; its 4 schedulers need one each", warps);
  }
  return "";
}

std::vector<TileSet> valid_tiles(const ChipLimits& chip) {
  std::vector<TileSet> valid;
  for (const TileSet& t : tile_grid()) {
    if (tile_refusal(t, chip).empty()) valid.push_back(t);
  }
  return valid;
}

double predict_sgemm_ms(const TileSet& t, const ChipLimits& chip, int64_t m, int64_t n,
                        int64_t k) noexcept {
  // Constants fitted to 404 sets at 1024 and 400 at 4096 cubed on one H200 (LADDER.md); mean error
  // 5%.
  constexpr double kIssue = 1.19;       // cycles an instruction of a full scheduler
  constexpr double kLoadB = 2.25;       // a 16-byte load of B, needed at once; one of A is 1
  constexpr double kCopy = 13.3;        // instructions of a 16-byte copy with its addresses
  constexpr double kBarrier = 212;      // cycles of a step's barrier and wait
  constexpr double kCode = 1024;        // multiply-adds of a step that the instruction cache holds
  constexpr double kFetch = 2.74;       // cycles to fetch one more, for a scheduler with one warp
  constexpr double kFetchPower = 4;     // how fast more warps hide that
  constexpr double kLaunchMs = 0.0077;  // launch, first loads and the way out
  const auto up = [](int64_t a, int64_t b) { return static_cast<double>((a + b - 1) / b); };
  const double blocks = up(m, t.bm) * up(n, t.bn);
  const double rounds = std::ceil(blocks / chip.multiprocessors);
  const double together =
      std::clamp(rounds, 1.0, std::max(1.0, static_cast<double>(resident_blocks(t, chip))));
  const double warps = static_cast<double>(t.threads()) / 32.0;
  const double multiply_adds = static_cast<double>(t.bk) * t.tm * t.tn;
  const double loads = t.bk * (t.tm / 4.0 + kLoadB * t.tn / 4.0);
  const double copies = (t.bm + t.bn) * t.bk / 4.0 / t.threads();
  const double instructions = multiply_adds + loads + kCopy * copies;  // of one warp in a step
  const double issue = kIssue * instructions * warps / 4.0 * (128.0 / chip.fma_per_clock);
  const double per_scheduler = std::max(1.0, together * warps / 4.0);
  const double fetch =
      std::max(0.0, multiply_adds - kCode) * kFetch / std::pow(per_scheduler, kFetchPower);
  const double alone = (instructions + kBarrier + fetch) / together;
  // A step takes the longer of both; where they are near each other, more than either.
  const double step = std::sqrt(std::sqrt(std::pow(issue, 4) + std::pow(alone, 4)));
  const double compute_ms = rounds * up(k, t.bk) * step / (chip.clock_ghz * 1e6);
  const double bytes = 4.0 * (static_cast<double>(m) * static_cast<double>(k) +
                              static_cast<double>(k) * static_cast<double>(n) +
                              static_cast<double>(m) * static_cast<double>(n));
  return std::max(compute_ms, bytes / (chip.memory_gb_per_s * 1e6)) + kLaunchMs;
}

const TileSet& best_by_model(const std::vector<TileSet>& tiles, const ChipLimits& chip, int64_t m,
                             int64_t n, int64_t k) noexcept {
  const auto cost = [&](const TileSet& t) { return predict_sgemm_ms(t, chip, m, n, k); };
  return *std::min_element(tiles.begin(), tiles.end(),
                           [&](const TileSet& a, const TileSet& b) { return cost(a) < cost(b); });
}

}  // namespace saturate::kernels
