// SPDX-License-Identifier: Apache-2.0
#include "ops/context_attention.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "ops/attention.h"
#include "ops/row_chunks.h"
#include "parallel/lockstep.h"

namespace saturate::ops {
namespace {

using Doubles = std::vector<double>;
using parallel::Communicator;

constexpr int64_t kRows = 256, kHeads = 3, kKeyHeads = 1, kSize = 4, kSequences = 5;
constexpr int64_t kQ = kHeads * kSize, kWidth = kQ + 2 * kKeyHeads * kSize;
// Longer than a chunk, across several ends of chunks, empty, and rows behind them that none has.
constexpr int32_t kOffsets[] = {0, 149, 186, 186, 239, 241};

double value(int64_t i, double frequency) { return std::sin(frequency * static_cast<double>(i)); }

AttentionSpec spec_of(bool causal) {
  return {.heads = kHeads,
          .kv_heads = kKeyHeads,
          .head_size = kSize,
          .cu_q = kOffsets,
          .cu_k = kOffsets,
          .sequences = kSequences,
          .max_q = 149,
          .max_k = 149,
          .causal = causal,
          .dropout = 0.2f};
}

// Result and gradient of q, k and v by the rows of the micro-batch.
struct Result {
  Doubles o = Doubles(kRows * kQ), d = Doubles(kRows * kWidth);
};

// One rank's, from and to its rows in the order of ranks.
void run(Communicator& c, bool causal, Result* all) {
  const int64_t parts = c.size(), own = kRows / parts;
  std::vector<int64_t> rows;
  for (const RowChunk& chunk : row_chunks(kRows, parts, c.rank()))
    for (int64_t i = 0; i < chunk.rows; ++i) rows.push_back(chunk.first + i);
  Doubles x, d_o;
  for (const int64_t row : rows) {
    for (int64_t i = 0; i < kWidth; ++i) x.push_back(value(row * kWidth + i, 0.7));
    for (int64_t i = 0; i < kQ; ++i) d_o.push_back(value(row * kQ + i, 1.3));
  }
  const uint64_t rng[] = {3, 5};
  ParameterStore store(Device{}, DType::f64);
  store.allocate(ParameterStore::Purpose::training);
  Tape t(store, TapeMode::training, rng);
  t.set_rows(own * c.rank(), kRows);
  const Value qkv = t.external("qkv", DType::f64, own, kWidth, x.data());
  std::vector<int32_t> offsets(static_cast<size_t>(chunk_offsets_words(kSequences)));
  Value o;
  if (parts == 1) {
    AttentionSpec s = spec_of(causal);
    s.q = {qkv, 0}, s.k = {qkv, kQ}, s.v = {qkv, kQ + kKeyHeads * kSize};
    o = attention(t, s);
  } else {
    t.set_chunks(2 * parts);
    chunk_offsets(kOffsets, kSequences, row_chunks(kRows, parts, c.rank()), offsets.data());
    o = chunked_attention(t, {.communicator = &c, .group = c.world()}, qkv, {}, spec_of(causal),
                          offsets.data());
  }
  t.set_gradient(o, t.external("d_o", DType::f64, own, kQ, d_o.data()));
  t.backward();
  Doubles o_own(static_cast<size_t>(own * kQ)), d_own(static_cast<size_t>(own * kWidth));
  t.put_at(o, o_own.data());
  t.put_at(t.gradient(qkv), d_own.data());
  std::vector<char> arena(t.plan() + 256, static_cast<char>(0xFF));  // NaN: poison
  t.run(Context{}, arena.data(), false);
  for (int64_t i = 0; i < own; ++i) {
    const int64_t row = rows[static_cast<size_t>(i)];
    std::copy_n(o_own.begin() + i * kQ, kQ, all->o.begin() + row * kQ);
    std::copy_n(d_own.begin() + i * kWidth, kWidth, all->d.begin() + row * kWidth);
  }
}

double distance(const Doubles& a, const Doubles& b) {
  double worst = 0;
  for (size_t i = 0; i < a.size(); ++i)
    worst = std::isnan(b[i]) ? INFINITY : std::max(worst, std::fabs(a[i] - b[i]));
  return worst;
}

TEST(ChunkedAttention, IsThatOfOneRankWithMasksOfDropout) {
  for (const bool causal : {true, false}) {
    Result one;
    parallel::run_lockstep(1, [&](Communicator& c) { run(c, causal, &one); });
    for (const int parts : {2, 4, 8}) {
      Result shared;
      parallel::run_lockstep(parts, [&](Communicator& c) { run(c, causal, &shared); });
      EXPECT_LT(distance(one.o, shared.o), 1e-13) << parts << (causal ? " causal" : "");
      EXPECT_LT(distance(one.d, shared.d), 1e-12) << parts << (causal ? " causal" : "");
    }
  }
}

TEST(RowChunks, LieAtBothEndsAndCoverAllRows) {
  std::vector<int> seen(96, 0);
  for (int64_t part = 0; part < 3; ++part) {
    const auto chunks = row_chunks(96, 3, part);
    EXPECT_EQ(chunks[0].first + chunks[1].first, 80);
    EXPECT_EQ(chunks[0].padding, part == 0 ? 0 : 16);
    for (const RowChunk& c : chunks)
      for (int64_t i = 0; i < c.rows; ++i) ++seen[static_cast<size_t>(c.first + i)];
  }
  EXPECT_EQ(seen, std::vector<int>(96, 1));
}

}  // namespace
}  // namespace saturate::ops
