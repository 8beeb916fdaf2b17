// SPDX-License-Identifier: Apache-2.0
#include "parallel/control_channel.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <future>
#include <numeric>

#include "base/error.h"

namespace saturate::parallel {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

LaunchInfo local(int rank, int size) {
  LaunchInfo info;
  info.rank = info.local_rank = rank;
  info.size = info.local_size = size;
  info.source = "torchrun";
  info.rendezvous_host = "localhost";
  info.rendezvous_port = 20000 + getpid() % 10000;
  info.job = std::to_string(getpid());
  return info;
}

// Runs body(rank) on one thread per rank; throws what the first rank threw.
void on_ranks(int size, const std::function<void(int)>& body) {
  std::vector<std::future<void>> ranks;
  for (int r = 0; r < size; ++r) ranks.push_back(std::async(std::launch::async, body, r));
  for (auto& r : ranks) r.wait();
  for (auto& r : ranks) r.get();
}

TEST(ControlChannel, SumsBroadcastsAndLeavesInPeace) {
  on_ranks(4, [](int rank) {
    auto channel = ControlChannel::open(
        local(rank, 4),
        {.connect_timeout_s = 10, .on_failure = [](auto& line) { ADD_FAILURE() << line; }});
    double value = rank + 1;
    channel->all_reduce(&value, 1, DType::f64, ReduceOp::sum);
    EXPECT_EQ(value, 10);
    value = -rank;
    channel->all_reduce(&value, 1, DType::f64, ReduceOp::max);
    EXPECT_EQ(value, 0);
    std::string text = rank == 2 ? "from two" : "........";
    channel->broadcast(text.data(), static_cast<int64_t>(text.size()), 2);
    EXPECT_EQ(text, "from two");
    // Longer than a frame, so it crosses in parts.
    std::vector<float> many(kMaxFrameBytes / sizeof(float) + 100, static_cast<float>(rank));
    channel->all_reduce(many.data(), static_cast<int64_t>(many.size()), DType::f32, ReduceOp::sum);
    EXPECT_EQ(std::accumulate(many.begin(), many.end(), 0.0),
              6.0 * static_cast<double>(many.size()));
    std::this_thread::sleep_for(milliseconds(20 * rank));
    channel->close();
  });
}

TEST(ControlChannel, RanksOnDifferentDevicesAreToldSoAtOnce) {
  const Clock::time_point begin = Clock::now();
  std::vector<std::string> said(3);
  on_ranks(3, [&](int rank) {
    const DeviceKind device = rank == 2 ? DeviceKind::cuda : DeviceKind::cpu;
    try {
      const auto channel = ControlChannel::open(
          local(rank, 3),
          {.connect_timeout_s = 10, .device = device, .on_failure = [](const std::string&) {}});
      if (rank == 0) said[0] = "went on";
    } catch (const Error& e) {
      said[static_cast<size_t>(rank)] = e.what();
    }
  });
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(5));
  EXPECT_NE(said[0].find("rank 0 is on the CPU and rank 2 is on a GPU"), std::string::npos)
      << said[0];
  EXPECT_EQ(said[1], "");  // it has met rank 0, and is told of its end like of any other
  EXPECT_NE(said[2].find("rank 2 is on a GPU and rank 0 is on the CPU"), std::string::npos)
      << said[2];
}

TEST(ControlChannel, AReportReachesRanksThatWait) {
  std::vector<std::string> lines(3);
  on_ranks(3, [&](int rank) {
    auto channel = ControlChannel::open(
        local(rank, 3), {.connect_timeout_s = 10, .on_failure = [&, rank](auto& line) {
                           lines[static_cast<size_t>(rank)] = line;
                         }});
    channel->activity().set_step(120);
    if (rank == 2) return channel->report_failure("disk\nfull", FailureOrigin::here);
    double value = 0;
    EXPECT_THROW(channel->all_reduce(&value, 1, DType::f64, ReduceOp::sum), Error);
  });
  for (const std::string& line : lines)
    EXPECT_EQ(line, "rank 2 failed at step 120 while starting: disk full");
}

TEST(ControlChannel, TheCauseWinsOverItsEcho) {
  std::vector<std::string> lines(3);
  on_ranks(3, [&](int rank) {
    auto channel = ControlChannel::open(
        local(rank, 3), {.connect_timeout_s = 10, .on_failure = [&, rank](auto& line) {
                           lines[static_cast<size_t>(rank)] = line;
                         }});
    if (rank == 2) std::this_thread::sleep_for(milliseconds(200));
    channel->report_failure(rank == 2 ? "cause" : "echo",
                            rank == 2 ? FailureOrigin::here : FailureOrigin::echo);
  });
  for (const std::string& line : lines)
    EXPECT_EQ(line, "rank 2 failed at step 0 while starting: cause");
}

TEST(ControlChannel, AFailureReachesRanksThatAreLeaving) {
  std::string line;
  on_ranks(3, [&](int rank) {
    auto channel = ControlChannel::open(local(rank, 3),
                                        {.connect_timeout_s = 10, .on_failure = [&, rank](auto& l) {
                                           if (rank == 1) line = l;
                                         }});
    if (rank == 1) return channel->close();
    std::this_thread::sleep_for(milliseconds(100));
    if (rank == 0)
      channel->report_failure("late", FailureOrigin::here);
    else
      channel->close();
  });
  EXPECT_EQ(line, "rank 0 failed at step 0 while starting: late");
}

TEST(ControlChannel, DifferentCallsAreAnError) {
  on_ranks(2, [](int rank) {
    auto channel =
        ControlChannel::open(local(rank, 2), {.connect_timeout_s = 10, .on_failure = [](auto&) {}});
    double values[2] = {};
    EXPECT_THROW(channel->all_reduce(values, rank + 1, DType::f64, ReduceOp::sum), Error);
  });
}

TEST(ControlChannel, HealthOfATransportIsWatched) {
  std::string line;
  bool aborted = false;
  on_ranks(2, [&](int rank) {
    auto channel = ControlChannel::open(
        local(rank, 2),
        {.connect_timeout_s = 10, .heartbeat_s = 0.4, .on_failure = [&, rank](auto& l) {
           if (rank == 1) line = l;
         }});
    if (rank == 1) channel->set_guard([] { return "link down"; }, [&] { aborted = true; });
    double value = 0;
    EXPECT_THROW(channel->broadcast(&value, sizeof value, 1 - rank), Error);
  });
  EXPECT_EQ(line,
            "rank 1 failed at step 0 while starting, in a broadcast between the hosts: link down");
  EXPECT_TRUE(aborted);
}

TEST(ControlChannel, VerdictOutlivesTheRankThatGaveIt) {
  std::string line;
  on_ranks(2, [&](int rank) {
    auto channel = ControlChannel::open(
        local(rank, 2),
        {.connect_timeout_s = 10, .heartbeat_s = 2.4, .on_failure = [&, rank](auto& l) {
           if (rank == 1) line = l;
         }});
    // The watcher of rank 1 stands still while the verdict and the end of rank 0 arrive together.
    const auto health = [calls = 0]() mutable {
      if (++calls == 2) std::this_thread::sleep_for(std::chrono::milliseconds(1200));
      return "link down";
    };
    if (rank == 1) channel->set_guard(health, [] {});
    double value = 0;
    EXPECT_THROW(channel->broadcast(&value, sizeof value, 1 - rank), Error);
  });
  EXPECT_EQ(line,
            "rank 1 failed at step 0 while starting, in a broadcast between the hosts: link down");
}

TEST(ControlChannel, MissingRanksAreNamed) {
  try {
    ControlChannel::open(local(0, 3), {.connect_timeout_s = 0.2});
    FAIL();
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("missing: 1, 2"), std::string::npos) << e.what();
  }
  try {
    ControlChannel::open(local(1, 3), {.connect_timeout_s = 0.2});
    FAIL();
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("found no rank 0"), std::string::npos) << e.what();
  }
}

TEST(ControlChannel, AnotherJobOnTheSamePortIsNotOurs) {
  Descriptor stranger;
  const int port = listen_on(Reach::this_host, local(0, 2).rendezvous_port, 1, stranger);
  on_ranks(2, [&](int rank) {
    LaunchInfo info = local(rank, 2);
    info.rendezvous_port = port;
    auto channel = ControlChannel::open(info, {.connect_timeout_s = 10});
    channel->close();
  });
}

// Real processes with the default ending: what reaches standard error, and how they exit.
struct Child {
  pid_t pid = 0;
  std::string stderr_path;
  int status = 0;
  std::string output() const {
    std::ifstream in(stderr_path);
    return {std::istreambuf_iterator<char>(in), {}};
  }
};

std::vector<Child> start(int size, double heartbeat_s,
                         const std::function<void(ControlChannel&)>& body) {
  std::vector<Child> children;
  const std::string base =
      testing::TempDir() + "saturate_control_" + std::to_string(getpid()) + "_";
  const LaunchInfo shared = local(0, size);
  int ready[2];
  EXPECT_EQ(pipe(ready), 0);
  for (int rank = 0; rank < size; ++rank) {
    Child child{.pid = 0, .stderr_path = base + std::to_string(rank)};
    child.pid = fork();
    if (child.pid == 0) {
      if (!std::freopen(child.stderr_path.c_str(), "w", stderr)) _exit(3);
      LaunchInfo info = shared;
      info.rank = info.local_rank = rank;
      auto channel =
          ControlChannel::open(info, {.connect_timeout_s = 10, .heartbeat_s = heartbeat_s});
      if (write(ready[1], "r", 1) != 1) _exit(3);
      body(*channel);
      channel->close();
      channel.reset();
      _exit(0);
    }
    children.push_back(child);
  }
  close(ready[1]);
  char byte;
  for (int connected = 0; connected < size; ++connected) EXPECT_EQ(read(ready[0], &byte, 1), 1);
  close(ready[0]);
  return children;
}

// False when one of `children` lives longer than 10 s.
bool all_end(std::vector<Child>& children) {
  const auto deadline = Clock::now() + std::chrono::seconds(10);
  for (Child& c : children) {
    while (waitpid(c.pid, &c.status, WNOHANG) == 0) {
      if (Clock::now() > deadline) return false;
      std::this_thread::sleep_for(milliseconds(10));
    }
    c.pid = 0;
  }
  return true;
}

struct Reaper {
  std::vector<Child>& children;
  ~Reaper() {
    for (Child& c : children) {
      if (c.pid > 0) kill(c.pid, SIGKILL), waitpid(c.pid, nullptr, 0);
      unlink(c.stderr_path.c_str());
    }
  }
};

void stuck(ControlChannel&) {
  for (;;) pause();
}

TEST(ControlChannelProcesses, KilledRankEndsAllWithItsNumber) {
  for (const int victim : {0, 2}) {
    auto children = start(3, 30, [](ControlChannel& channel) {
      channel.activity().set_step(7);
      channel.activity().set_action("training", Pace::steady);
      double value = 0;
      channel.all_reduce(&value, 1, DType::f64, ReduceOp::sum);
      stuck(channel);
    });
    const Reaper reaper{children};
    std::this_thread::sleep_for(milliseconds(700));  // a heartbeat says where each rank is
    kill(children[static_cast<size_t>(victim)].pid, SIGKILL);
    ASSERT_TRUE(all_end(children));
    for (int r = 0; r < 3; ++r) {
      if (r == victim) continue;
      const Child& c = children[static_cast<size_t>(r)];
      EXPECT_TRUE(WIFEXITED(c.status) && WEXITSTATUS(c.status) == 1);
      EXPECT_EQ(c.output(),
                "rank " + std::to_string(victim) +
                    " failed at step 7 while training, after a sum between the hosts: its process "
                    "ended without a word (killed, crashed, or its host is gone)\n");
    }
  }
}

// The first rank, which passes all news on, and another one. Who is stopped cannot end itself.
TEST(ControlChannelProcesses, StoppedRankEndsAllAndIsEnded) {
  for (const int victim : {0, 1}) {
    auto children = start(3, 0.4, [](ControlChannel& channel) {
      channel.activity().set_step(3);
      stuck(channel);
    });
    const Reaper reaper{children};
    std::this_thread::sleep_for(milliseconds(150));
    kill(children[static_cast<size_t>(victim)].pid, SIGSTOP);
    ASSERT_TRUE(all_end(children));
    for (int r = 0; r < 3; ++r) {
      const Child& c = children[static_cast<size_t>(r)];
      EXPECT_EQ(
          c.output(),
          r == victim
              ? ""
              : "rank " + std::to_string(victim) +
                    " failed at step 3 while starting: no sign of life for 0.4 s (process stopped, "
                    "host frozen or network cut)\n");
    }
    EXPECT_TRUE(WIFSIGNALED(children[static_cast<size_t>(victim)].status));
  }
}

TEST(ControlChannelProcesses, AllEndWithTheExitCodeOfTheFailure) {
  auto children = start(3, 30, [](ControlChannel& channel) {
    if (channel.rank() == 1) channel.report_failure("a wrong key", FailureOrigin::here, kExitUsage);
    stuck(channel);
  });
  const Reaper reaper{children};
  ASSERT_TRUE(all_end(children));
  for (const Child& c : children) EXPECT_EQ(WEXITSTATUS(c.status), kExitUsage) << c.output();
}

TEST(ControlChannelProcesses, NormalEndIsSilent) {
  auto children = start(3, 30, [](ControlChannel& channel) {
    std::this_thread::sleep_for(milliseconds(100 * channel.rank()));
  });
  const Reaper reaper{children};
  ASSERT_TRUE(all_end(children));
  for (const Child& c : children) {
    EXPECT_TRUE(WIFEXITED(c.status) && WEXITSTATUS(c.status) == 0);
    EXPECT_EQ(c.output(), "");
  }
}

}  // namespace
}  // namespace saturate::parallel
