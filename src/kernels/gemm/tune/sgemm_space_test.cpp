// SPDX-License-Identifier: Apache-2.0
#include "kernels/gemm/tune/sgemm_space.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <set>

#include "base/testing/temp_folder.h"
#include "kernels/gemm/tune/halving.h"
#include "kernels/gemm/tune/sgemm_jit.h"
#include "kernels/gemm/tune/sgemm_source.h"

namespace saturate::kernels {
namespace {

constexpr TileSet kGood{128, 256, 8, 16, 8, 64, 64, 4};

TEST(TileSpace, HoldsSeveralHundredValidSetsAndNoneTwice) {
  const std::vector<TileSet> valid = valid_tiles({});
  EXPECT_GE(valid.size(), 350u);
  EXPECT_LE(valid.size(), 700u);
  std::set<std::string> names;
  for (const TileSet& t : valid) {
    EXPECT_TRUE(names.insert(text_of(t)).second);
    EXPECT_LE(t.shared_bytes(), ChipLimits{}.shared_per_block);
    EXPECT_LE(t.threads() * estimated_registers(t), 65536 + 8 * t.threads());
    EXPECT_EQ((t.wm / t.tm) * (t.wn / t.tn), 32);
  }
  EXPECT_TRUE(names.contains(text_of(kGood)));
}

TEST(TileSpace, EachRuleRefusesWithItsNumbers) {
  const auto why = [](auto change) {
    TileSet t = kGood;
    change(t);
    return tile_refusal(t, {});
  };
  EXPECT_EQ(tile_refusal(kGood, {}), "");
  EXPECT_EQ(why([](TileSet& t) { t.bm = 96; }),
            "warp tile 64x64 does not divide block tile 96x256");
  EXPECT_EQ(why([](TileSet& t) { t.tm = 24; }), "thread tile 24x8 does not divide warp tile 64x64");
  EXPECT_EQ(why([](TileSet& t) { t.tm = 8; }), "8x8 threads cover a warp tile; a warp has 32");
  EXPECT_EQ(why([](TileSet& t) { t.bk = 12; }),
            "depth 12; must be 8, 16, 32 or 64 (the permutation of chunks)");
  EXPECT_EQ(why([](TileSet& t) { t.stages = 1; }),
            "1 stages; a copy needs a second one to run ahead");
  EXPECT_EQ(why([](TileSet& t) { t.wm = 0; }), "every size starts at 1");
  EXPECT_NE(why([](TileSet& t) { t = {256, 256, 8, 8, 4, 32, 32, 2}; }), "");
  EXPECT_EQ(why([](TileSet& t) { t.bk = 32, t.stages = 5; }),
            "248320 bytes of shared memory; a block has at most 232448");
  EXPECT_EQ(why([](TileSet& t) { t = {128, 128, 8, 16, 16, 128, 64, 2}; }),
            "about 376 registers a thread; at most 255, more would spill");
  EXPECT_EQ(why([](TileSet& t) { t = {256, 256, 8, 16, 8, 64, 64, 3}; }),
            "about 240 registers x 512 threads; a multiprocessor has 65536");
  ChipLimits turing;
  turing.shared_per_block = turing.shared_per_multiprocessor = 65536;
  EXPECT_LT(valid_tiles(turing).size(), valid_tiles({}).size());
}

TEST(TileSpace, NamesReadBack) {
  for (const TileSet& t : valid_tiles({})) EXPECT_EQ(parse_tile_set(text_of(t)), t);
  for (const char* text : {"", "128", "128x256x8 thread 16x8 warp 64x64 stages 4 ",
                           "128x256x8 thread 16x8 warp 64x64 stages +4", "axb"}) {
    EXPECT_FALSE(parse_tile_set(text)) << text;
  }
}

TEST(TileModel, FollowsWavesAndTraffic) {
  const ChipLimits chip;
  const auto ms = [&](const TileSet& t, int64_t m, int64_t n, int64_t k) {
    return predict_sgemm_ms(t, chip, m, n, k);
  };
  // 132 blocks fill the chip once; one more block costs another round.
  EXPECT_GT(ms(kGood, 128 * 133, 256, 4096), 1.8 * ms(kGood, 128 * 132, 256, 4096));
  // Nothing beats the peak of 2 x 128 x 132 operations a clock.
  for (const TileSet& t : valid_tiles(chip)) {
    EXPECT_GE(ms(t, 4096, 4096, 4096), 2.0 * 4096.0 * 4096.0 * 4096.0 / (256.0 * 132 * 1.75e6));
  }
  // A small product wants small tiles, a large one large tiles.
  const std::vector<TileSet> tiles = valid_tiles(chip);
  const TileSet small = best_by_model(tiles, chip, 256, 256, 256);
  const TileSet large = best_by_model(tiles, chip, 4096, 4096, 4096);
  EXPECT_LT(small.bm * small.bn, large.bm * large.bn);
}

// Candidate i takes i + 1 ms, with noise of 20% that a single sample would fall for.
TEST(Halving, FindsTheFastestWithFewMeasurements) {
  size_t measurements = 0;
  uint32_t state = 1;
  const TimeOnce noisy = [&](std::span<const size_t> ids) {
    std::vector<double> ms;
    for (const size_t id : ids) {
      state = state * 1664525u + 1013904223u;
      const double noise = 0.8 + 0.4 * static_cast<double>(state >> 8) / 16777216.0;
      ms.push_back((100.0 + 10.0 * static_cast<double>((id * 7) % 400)) * noise);
      ++measurements;
    }
    return ms;
  };
  const size_t kept[] = {399};
  size_t last = 0;
  const auto ranking =
      rank_by_halving(400, kept, Search::quick, noisy, [&](size_t done, size_t total) {
        EXPECT_LE(done, total);
        EXPECT_GE(done, last);
        last = done;
      });
  ASSERT_EQ(ranking.size(), 400u);
  EXPECT_LE((ranking[0].id * 7) % 400, 3u);
  EXPECT_EQ(ranking[0].samples, 25);
  EXPECT_LT(measurements, 1500u) << "400 candidates 25 times would be 10,000";
  const auto at =
      std::find_if(ranking.begin(), ranking.end(), [](const Ranked& r) { return r.id == 399; });
  EXPECT_EQ(at->samples, 25) << "kept candidates reach the last pass";
  EXPECT_EQ(rank_by_halving(1, {}, Search::quick, noisy, [](size_t, size_t) {}).size(), 1u);
  EXPECT_EQ(rank_by_halving(30, {}, Search::exhaustive, noisy, [](size_t, size_t) {})[0].samples,
            41);
}

TEST(Nvrtc, CompilesCandidatesWithoutAGpuAndKeepsThem) {
  if (const Fit fit = nvrtc_fits(); !fit) GTEST_SKIP() << fit.reason;
  const saturate::testing::TempFolder folder;
  constexpr TileSet kSmall{64, 64, 8, 8, 4, 32, 32, 3};  // compiles in half a second
  const NvrtcKernel first = compile_sgemm_tile(folder.path(), "sm_90a", kSmall, true);
  EXPECT_NE(first.symbol.find("sgemm_tiled"), std::string::npos);
  EXPECT_EQ(first.cubin.substr(1, 3), "ELF");
  std::string file;
  for (const auto& f : std::filesystem::directory_iterator(folder.path())) file = f.path();
  ASSERT_TRUE(file.ends_with(".cubin")) << file;
  EXPECT_EQ(compile_sgemm_tile(folder.path(), "sm_90a", kSmall, true).cubin, first.cubin);
  // A file that was altered is not loaded.
  std::string content = saturate::testing::read_file(file);
  content[content.size() / 2] = static_cast<char>(content[content.size() / 2] ^ 1);
  saturate::testing::write_file(file, content);
  EXPECT_EQ(compile_sgemm_tile(folder.path(), "sm_90a", kSmall, true).cubin, first.cubin);
  EXPECT_NE(compile_sgemm_tile("", "sm_80", kSmall, false).cubin, first.cubin);
}

TEST(Nvrtc, SaysWhatTheCompilerSays) {
  if (const Fit fit = nvrtc_fits(); !fit) GTEST_SKIP() << fit.reason;
  try {
    nvrtc_compile(kSgemmTiledSource, {}, "sm_90a", "saturate::kernels::sgemm_tiled<128, 128, 8>");
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), Errc::invalid_argument);
    EXPECT_NE(std::string(e.what()).find("error"), std::string::npos) << e.what();
  }
}

}  // namespace
}  // namespace saturate::kernels
