// SPDX-License-Identifier: Apache-2.0
#include "parallel/lockstep.h"

#include <gtest/gtest.h>

#include <numeric>

#include "base/error.h"
#include "base/half.h"

namespace saturate::parallel {
namespace {

using enum CollectiveKind;
using Doubles = std::vector<double>;

std::string failure(int ranks, const std::function<void(Communicator&)>& body) {
  try {
    run_lockstep(ranks, body);
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), Errc::collective);
    return e.what();
  }
  return "";
}

void whole(Communicator& c, const Collective& what, const void* input, void* output) {
  c.wait(c.start(what, input, output, {}), {});
}

TEST(Lockstep, PerformsEveryKind) {
  run_lockstep(3, [](Communicator& c) {
    const double r = c.rank();
    const Group& all = c.world();
    Doubles x = {r + 1, 10 * r};
    whole(c, {.group = all, .dtype = DType::f64, .count = 2}, nullptr, x.data());
    EXPECT_EQ(x, (Doubles{6, 30}));
    x = {r, r + 10, r + 20};
    Doubles part = {-1};
    whole(c, {.kind = reduce_scatter, .group = all, .dtype = DType::f64, .count = 1}, x.data(),
          part.data());
    EXPECT_EQ(part, (Doubles{3 + 30 * r}));
    Doubles gathered(3);
    whole(c, {.kind = all_gather, .group = all, .dtype = DType::f64, .count = 1}, &r,
          gathered.data());
    EXPECT_EQ(gathered, (Doubles{0, 1, 2}));
    x = {r, r + 10, r + 20};  // both in place
    double* const own = x.data() + c.rank();
    whole(c, {.kind = reduce_scatter, .group = all, .dtype = DType::f64, .count = 1}, x.data(),
          own);
    EXPECT_EQ(*own, 3 + 30 * r);
    whole(c, {.kind = all_gather, .group = all, .dtype = DType::f64, .count = 1}, own, x.data());
    EXPECT_EQ(x, (Doubles{3, 33, 63}));
    x = {r};
    whole(c, {.kind = broadcast, .group = all, .dtype = DType::f64, .count = 1, .root = 2}, nullptr,
          x.data());
    EXPECT_EQ(x, (Doubles{2}));
    // Rank r gives j + 1 elements to rank j.
    x.assign(6, r);
    Doubles got(3 * (static_cast<size_t>(c.rank()) + 1), -1);
    whole(c,
          {.kind = all_to_all,
           .group = all,
           .dtype = DType::f64,
           .send_counts = {1, 2, 3},
           .receive_counts = std::vector<int64_t>(3, c.rank() + 1)},
          x.data(), got.data());
    for (size_t i = 0; i < got.size(); ++i)
      EXPECT_EQ(got[i], static_cast<double>(i / (static_cast<size_t>(c.rank()) + 1)));
    EXPECT_EQ(c.all_reduce_sum(r), 3);
    EXPECT_EQ(c.all_reduce_max(-r), 0);
    std::string text = c.rank() == 1 ? "from one" : "........";
    c.broadcast(text.data(), std::ssize(text), 1);
    EXPECT_EQ(text, "from one");
    c.barrier();
  });
}

TEST(Lockstep, TransfersMeetWhateverElseIsOpen) {
  run_lockstep(2, [](Communicator& c) {
    const int other = 1 - c.rank();
    std::vector<int64_t> to(2), none(2);
    to[static_cast<size_t>(other)] = 1;
    double mine = c.rank(), theirs = -1, total = 1;
    const Collective ring{.kind = send_receive,
                          .group = c.world(),
                          .dtype = DType::f64,
                          .send_counts = to,
                          .receive_counts = to};
    const Ticket t = c.start(ring, &mine, &theirs, {});
    const Ticket s =
        c.start({.group = c.world(), .dtype = DType::f64, .count = 1}, nullptr, &total, {});
    c.wait(s, {});
    c.wait(t, {});
    EXPECT_EQ(theirs, other);
    EXPECT_EQ(total, 2);
  });
}

// 1 + 2^-53 + 2^-53 is 1 from the left and more from the right: the order of ranks shows.
TEST(Lockstep, SumsInTheOrderOfRanks) {
  run_lockstep(3, [](Communicator& c) {
    double x = c.rank() == 0 ? 1 : 0x1p-53;
    whole(c, {.group = c.world(), .dtype = DType::f64, .count = 1}, nullptr, &x);
    EXPECT_EQ(x, 1);
    uint16_t h = to_bf16(c.rank() == 0 ? 256.0f : 1.0f).bits;
    whole(c, {.group = c.world(), .dtype = DType::bf16, .count = 1}, nullptr, &h);
    EXPECT_EQ(to_float(Bf16{h}), 256.0f);  // each addition of 1 is rounded away
  });
}

TEST(Lockstep, OneRankRunsAtATimeAndGroupsGoOnAlone) {
  int running = 0;
  std::vector<int> order;
  run_lockstep(4, [&](Communicator& c) {
    const Group pair = c.make_group(c.rank() < 2 ? std::vector{0, 1} : std::vector{2, 3});
    for (int i = 0; i < 3; ++i) {
      EXPECT_EQ(++running, 1);
      order.push_back(c.rank());
      --running;
      double x = 1;
      whole(c, {.group = pair, .dtype = DType::f64, .count = 1}, nullptr, &x);
      EXPECT_EQ(x, 2);
    }
  });
  EXPECT_EQ(order, (std::vector{0, 1, 1, 2, 3, 3, 0, 0, 1, 2, 2, 3}));
}

TEST(Lockstep, WhatDoesNotFitIsNamed) {
  const auto sum = [](Communicator& c, const Group& group, int64_t count) {
    Doubles x(8);
    whole(c, {.group = group, .dtype = DType::f64, .count = count}, nullptr, x.data());
  };
  EXPECT_EQ(
      failure(2, [&](Communicator& c) { sum(c, c.world(), c.rank() + 1); }),
      "[lockstep] ranks 0 and 1 have started different things: all_reduce of 1 f64 over ranks "
      "0, 1; all_reduce of 2 f64 over ranks 0, 1");
  EXPECT_EQ(failure(3,
                    [&](Communicator& c) {
                      if (c.rank() != 1) sum(c, c.world(), 4);
                    }),
            "[lockstep] no rank can go on; rank 0 waits for its collective 1: all_reduce of 4 f64 "
            "over ranks 0, 1, 2; rank 1 has ended after 0 collectives; rank 2 waits for its "
            "collective 1: all_reduce of 4 f64 over ranks 0, 1, 2");
  // Two groups in another order.
  EXPECT_NE(failure(2,
                    [&](Communicator& c) {
                      const Group again = c.make_group({0, 1});
                      const Group alone = c.make_group({c.rank()});
                      sum(c, alone, 1);
                      sum(c, c.rank() == 0 ? again : alone, 2);
                      sum(c, again, 3);
                    }),
            "");
  // Started, never joined, never waited for.
  EXPECT_NE(failure(2,
                    [&](Communicator& c) {
                      static double x;
                      if (c.rank() == 0)
                        c.start({.group = c.world(), .dtype = DType::f64, .count = 1}, nullptr, &x,
                                {});
                    })
                .find("rank 0 has ended, and others have not joined its all_reduce of 1 f64"),
            std::string::npos);
}

TEST(Lockstep, TheFirstErrorIsTheOneThatIsThrown) {
  int others = 0;
  try {
    run_lockstep(3, [&](Communicator& c) {
      if (c.rank() == 1) throw Error(Errc::io, "checkpoint", "no space left");
      try {
        c.barrier();
      } catch (const Error& e) {
        EXPECT_NE(std::string(e.what()).find("rank 1 ended with an error"), std::string::npos);
        ++others;
        throw;
      }
    });
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), Errc::io);
  }
  EXPECT_EQ(others, 2);
}

TEST(Lockstep, ListsAreComparedOverRanks) {
  run_lockstep(4, [](Communicator& c) {
    const Group pair = c.make_group(c.rank() < 2 ? std::vector{0, 1} : std::vector{2, 3});
    std::vector<Collective> list = {{.group = c.world(), .count = 5}};
    require_matching(c, list);
    list.push_back({.group = pair, .count = 7});
    require_matching(c, list);
    if (c.rank() == 3) list[1].count = 8;
    EXPECT_THROW(require_matching(c, list), Error);
    if (c.rank() == 3) list.pop_back();
    EXPECT_THROW(require_matching(c, list), Error);
  });
}

}  // namespace
}  // namespace saturate::parallel
