// SPDX-License-Identifier: Apache-2.0
#include "parallel/pipeline/schedule.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/error.h"
#include "base/philox.h"
#include "parallel/collective.h"

namespace saturate::parallel::pipeline {
namespace {

using Kind = ScheduleKind;

const std::pair<Kind, int32_t> kKinds[] = {
    {Kind::gpipe, 1},       {Kind::one_f_one_b, 1}, {Kind::one_f_one_b, 2}, {Kind::interleaved, 2},
    {Kind::interleaved, 3}, {Kind::zero_bubble, 1}, {Kind::zero_bubble, 2}};

// As the communicators see a list: one exchange of a size of its own for each transfer.
std::vector<Collective> exchanges(const Schedule& s, int32_t rank) {
  Group all;
  for (int32_t r = 0; r < s.ranks(); ++r) all.ranks.push_back(r);
  std::vector<Collective> list;
  for (const Action& a : s.actions[static_cast<size_t>(rank)]) {
    if (a.computes()) continue;
    const bool forward =
        a.kind == ActionKind::send_forward || a.kind == ActionKind::receive_forward;
    const bool sends = a.kind == ActionKind::send_forward || a.kind == ActionKind::send_backward;
    const int32_t to = a.chunk + (forward == sends ? 1 : -1);
    Collective c{.kind = CollectiveKind::send_receive, .group = all};
    c.send_counts.resize(all.ranks.size());
    c.receive_counts.resize(all.ranks.size());
    (sends ? c.send_counts
           : c.receive_counts)[static_cast<size_t>(s.rank_of[static_cast<size_t>(to)])] =
        1 + 2 * (a.micro_batch * s.chunks() + std::min(a.chunk, to)) + forward;
    list.push_back(std::move(c));
  }
  return list;
}

std::string mismatch(const Schedule& s) {
  std::vector<std::vector<Collective>> lists;
  for (int32_t r = 0; r < s.ranks(); ++r) lists.push_back(exchanges(s, r));
  return mismatch_of(lists);
}

Schedule lowered(Kind kind, int32_t ranks, int32_t chunks, int32_t micro_batches) {
  const Schedule s = make_schedule(
      {.kind = kind, .ranks = ranks, .micro_batches = micro_batches, .chunks_per_rank = chunks});
  return lower(s, unit_times(s.chunks()));
}

// Unequal times, in which lists by times and lowered lists have to be right as well.
ActionTimes uneven(int32_t chunks) {
  ActionTimes t{.transfer = 0.2};
  for (int32_t c = 0; c < chunks; ++c) {
    const auto at = [&](uint64_t i) { return 0.5 + philox4x32(3, i, c).x[0] / 4294967296.0; };
    t.forward.push_back(at(0));
    t.input_gradient.push_back(at(1));
    t.weight_gradient.push_back(at(2));
  }
  return t;
}

TEST(PipelineSchedule, AllKindsAreRightUpTo64Ranks) {
  for (const auto& [kind, chunks] : kKinds) {
    for (const int32_t ranks : {1, 2, 3, 4, 5, 7, 8, 16, 33, 64}) {
      if (ranks == 1 && chunks > 1) continue;
      for (const int32_t micro_batches : {1, 2, ranks - 1, ranks, 2 * ranks, 2 * ranks + 3}) {
        if (micro_batches < 1 || (kind == Kind::interleaved && micro_batches % ranks != 0))
          continue;
        if (ranks > 16 && chunks > 1 && micro_batches > ranks) continue;  // time
        const Schedule s = lowered(kind, ranks, chunks, micro_batches);
        const int32_t bound = kind == Kind::gpipe         ? micro_batches
                              : kind == Kind::interleaved ? (chunks + 1) * ranks - 1
                                                          : chunks * ranks;
        ASSERT_EQ(flaw_of(s, bound), "")
            << ranks << " ranks, " << chunks << " chunks, " << micro_batches << " micro-batches";
        if (ranks <= 16) {
          ASSERT_EQ(mismatch(s), "");
        }
      }
    }
  }
}

TEST(PipelineSchedule, UnevenTimesGiveRightListsToo) {
  for (const auto& [kind, chunks] : kKinds) {
    for (const int32_t ranks : {2, 3, 4, 8}) {
      const Schedule s = make_schedule({.kind = kind,
                                        .ranks = ranks,
                                        .micro_batches = 2 * ranks,
                                        .chunks_per_rank = chunks,
                                        .times = uneven(ranks * chunks)});
      EXPECT_EQ(flaw_of(s), "");
      const Schedule full = lower(s, uneven(ranks * chunks));
      EXPECT_EQ(flaw_of(full), "") << ranks << " ranks, " << chunks << " chunks";
      EXPECT_EQ(mismatch(full), "");
      EXPECT_EQ(lower(full, uneven(ranks * chunks)), full);
    }
  }
}

TEST(PipelineSchedule, BubblesAndMemoryAreThoseOfTheory) {
  constexpr int32_t p = 4, a = 16;
  const auto idle = [](const Schedule& s) {  // beyond the work of a rank, in units of F = I = W
    const auto times = unit_times(s.chunks());
    return simulate(s, times).makespan - 3.0 * s.micro_batches * s.chunks() / s.ranks();
  };
  const Schedule gpipe = lowered(Kind::gpipe, p, 1, a), one = lowered(Kind::one_f_one_b, p, 1, a),
                 looped = lowered(Kind::interleaved, p, 2, a),
                 zero = lowered(Kind::zero_bubble, p, 1, a),
                 v = lowered(Kind::zero_bubble, p, 2, a);
  EXPECT_DOUBLE_EQ(idle(gpipe), 3 * (p - 1));
  EXPECT_DOUBLE_EQ(idle(one), 3 * (p - 1));
  EXPECT_DOUBLE_EQ(idle(looped), 3 * (p - 1));  // units are of half a stage
  EXPECT_DOUBLE_EQ(idle(zero), p - 1);
  EXPECT_LE(idle(v), p - 1);
  EXPECT_EQ(in_flight(gpipe), std::vector<int32_t>(p, a));
  EXPECT_EQ(in_flight(one), (std::vector<int32_t>{4, 3, 2, 1}));
  EXPECT_EQ(in_flight(zero), std::vector<int32_t>(p, p));
  EXPECT_NE(flaw_of(zero, p - 1), "");
  EXPECT_EQ(to_text(lowered(Kind::zero_bubble, 1, 1, 2)), "0F0,0B0,0F1,0B1\n");
  EXPECT_NEAR(simulate(one, unit_times(p)).bubble, 3.0 / 19, 1e-12);
}

TEST(PipelineSchedule, TextIsReadBack) {
  for (const auto& [kind, chunks] : kKinds) {
    const Schedule s = lowered(kind, 4, chunks, 8);
    EXPECT_EQ(parse_schedule(to_text(s), "s.csv"), s);
  }
  // What PyTorch writes: empty cells where a rank waits.
  const Schedule s = parse_schedule("0F0,0F1,,0B0,0B1\r\n,1F0,1B0,1F1,1B1\n\n", "s.csv");
  EXPECT_EQ(s.micro_batches, 2);
  EXPECT_EQ(s.rank_of, (std::vector<int32_t>{0, 1}));
  EXPECT_EQ(to_text(lower(s, unit_times(2))),
            "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n"
            "1RECV_F0,1F0,1RECV_F1,1B0,1SEND_B0,1F1,1B1,1SEND_B1\n");
}

std::string refusal(const std::string& text) {
  try {
    parse_schedule(text, "s.csv");
  } catch (const Error& e) {
    return e.what();
  }
  return "none";
}

TEST(PipelineSchedule, BadTextIsRefusedByPlace) {
  const auto says = [](const std::string& text, const std::string& part) {
    EXPECT_NE(refusal(text).find(part), std::string::npos) << refusal(text);
  };
  says("0F0,0B0\n1F0,1Q0\n", "s.csv, line 2, cell 2: '1Q0' is no action");
  says("0F0,0B0x\n", "line 1, cell 2");
  says("0F99999999999\n", "line 1, cell 1");
  says("0UNSHARD,0F0,0B0\n", "compute_only");
  says("0F0,0B0\n0F1,0B1\n", "line 2, cell 1: chunk 0 of 0F1 lies on rank 0");
  says("0F0,0B0\n2F0,2B0\n", "no line has chunk 1");
  says("0F0\n", "rank 0: 0I0 is missing");
  says("0F1,0B1,0F0,0B0\n", "rank 0, action 0 (0F1): micro-batch 0 comes first");
  says("0B0,0F0\n", "wait for each other for ever: rank 0, action 0 (0B0)");
  says("", "0 ranks");
}

// A list with one thing wrong: an action gone, doubled, moved, of another micro-batch or chunk.
TEST(PipelineSchedule, CorruptedListsAreRefusedByRankAndAction) {
  int refused = 0, right = 0;
  for (uint64_t seed = 0; seed < 300; ++seed) {
    const auto draw = [&](uint64_t i, size_t n) {
      return static_cast<size_t>(philox4x32(9, seed, static_cast<uint32_t>(i)).x[0] % n);
    };
    const auto& [kind, chunks] = kKinds[draw(0, std::size(kKinds))];
    Schedule s = lowered(kind, 3, chunks, 6);
    const size_t rank = draw(1, 3);
    auto& list = s.actions[rank];
    const size_t i = draw(2, list.size()), j = draw(3, list.size());
    const Schedule before = s;
    switch (draw(4, 6)) {
      case 0:
        list.erase(list.begin() + static_cast<std::ptrdiff_t>(i));
        break;
      case 1:
        list.insert(list.begin() + static_cast<std::ptrdiff_t>(j), list[i]);
        break;
      case 2:
        std::swap(list[i], list[j]);
        break;
      case 3:
        list[i].micro_batch = static_cast<int32_t>(draw(5, 7));
        break;
      case 4:
        list[i].chunk = static_cast<int32_t>(draw(5, s.rank_of.size() + 1));
        break;
      default:
        list[i].kind = static_cast<ActionKind>(draw(5, kActionKinds));
        break;
    }
    const std::string flaw = flaw_of(s);
    if (flaw.empty()) {
      // Two neighbours that do not need each other, or nothing changed: then it must run as well.
      EXPECT_EQ(mismatch(s), "");
      EXPECT_NO_THROW(simulate(s, unit_times(s.chunks())));
      ++right;
      continue;
    }
    ++refused;
    EXPECT_NE(flaw.find("rank "), std::string::npos) << flaw;
    EXPECT_NE(flaw.find_first_of("FBIW"), std::string::npos) << flaw;
  }
  EXPECT_GT(refused, 200) << right;
}

TEST(PipelineSchedule, KindsSayWhatTheyCannotDo) {
  EXPECT_THROW(make_schedule({.kind = Kind::gpipe, .ranks = 2, .chunks_per_rank = 2}), Error);
  EXPECT_THROW(make_schedule({.kind = Kind::interleaved, .ranks = 2, .micro_batches = 4}), Error);
  EXPECT_THROW(
      make_schedule(
          {.kind = Kind::interleaved, .ranks = 2, .micro_batches = 3, .chunks_per_rank = 2}),
      Error);
  EXPECT_THROW(make_schedule({.kind = Kind::zero_bubble, .ranks = 2, .chunks_per_rank = 3}), Error);
  EXPECT_THROW(make_schedule({.ranks = 0}), Error);
  EXPECT_THROW(make_schedule({.ranks = 2, .times = unit_times(3)}), Error);
}

TEST(PipelineSchedule, TimelineHasAnEventForEachComputation) {
  const Schedule s = lowered(Kind::zero_bubble, 2, 1, 3);
  const std::string json = to_timeline(s, unit_times(2));
  const auto count = [&](const std::string& part) {
    int n = 0;
    for (size_t i = 0; (i = json.find(part, i)) != std::string::npos; ++i) ++n;
    return n;
  };
  EXPECT_EQ(count("\"ph\": \"X\""), 18);
  EXPECT_EQ(count("\"ph\": \"s\""), 6);
  EXPECT_EQ(count("\"ph\": \"f\""), 6);
  EXPECT_NE(json.find(R"("name": "1W2", "cat": "W", "pid": 0, "tid": 1, "ts": )"),
            std::string::npos);
}

}  // namespace
}  // namespace saturate::parallel::pipeline
