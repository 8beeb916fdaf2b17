// SPDX-License-Identifier: Apache-2.0
// One rank on the CPU under any launcher:   mpirun -n 2 saturate_ranks_test collectives|fail|die
// With a number it starts that many ranks itself, as torchrun would:   saturate_ranks_test fail 3
// saturate_ranks_test axes: on each axis a rank throws, is killed, stops, all of these at once.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "base/error.h"
#include "distributed/checks.h"

namespace saturate::distributed {
namespace {

int run_rank(const std::string& mode) {
  const Device cpu;
  const auto communicator = parallel::make_communicator(cpu, parallel::current_launch());
  try {
    if (mode == "collectives") {
      check_collectives(*communicator, cpu);
      if (communicator->rank() == 0)
        std::printf("PASS collectives: %d ranks over %s\n", communicator->size(),
                    communicator->name());
      return 0;
    }
    // A launcher that kills the others at the first death must not silence them.
    signal(SIGTERM, SIG_IGN);
    step_until_failure(*communicator, cpu, communicator->size() - 1, [&] {
      if (mode == "die") kill(getpid(), SIGKILL);
      throw Error(Errc::io, "checkpoint", "no space left on /data");
    });
  } catch (const std::exception& e) {
    communicator->report_failure(e);
  }
  return 2;  // report_failure() returned, or the steps ended
}

int spawn(const std::string& mode, int size) {
  const auto ranks = spawn_ranks(size, 120, [&] { return run_rank(mode); });
  bool good = true;
  for (int r = 0; r < size; ++r) {
    const Rank& rank = ranks[static_cast<size_t>(r)];
    const bool victim_of_kill = mode == "die" && r == size - 1;
    const int expected = mode == "collectives" ? 0 : victim_of_kill ? -SIGKILL : 1;
    good = good && rank.exit_code == expected && (mode == "collectives" || rank.seconds < 10);
    std::fprintf(stderr, "%s", rank.errors.c_str());
    if (rank.exit_code != expected)
      std::fprintf(stderr, "rank %d: exit code %d, expected %d\n", r, rank.exit_code, expected);
  }
  std::printf("%s %s\n", good ? "PASS" : "FAIL", mode.c_str());
  return good ? 0 : 1;
}

// One job of four ranks. "" or what went wrong.
std::string judge(parallel::MeshAxis axis, int victim, const std::string& what) {
  const auto ranks = spawn_ranks(4, 60, [&] {
    const auto c = parallel::make_communicator({}, parallel::current_launch());
    try {
      step_along_axis(*c, axis, victim, what);
    } catch (const std::exception& e) {
      c->report_failure(e);
    }
    return 2;
  });
  const std::string event = ranks[static_cast<size_t>(victim)].errors;
  if (event.rfind("event ", 0) != 0) return "the event never came: " + event;
  const double at = std::stod(event.substr(6));
  std::string wrong;
  for (int r = 0; r < 4; ++r) {
    const Rank& rank = ranks[static_cast<size_t>(r)];
    const double seconds = rank.ended_at - at;
    if (seconds > 10) wrong += "rank " + std::to_string(r) + " ended late; ";
    if (r == victim && what != "throw") continue;
    const std::string begin = "rank " + std::to_string(victim) + " failed at step ";
    // The others may have gone on to the next step's sum, where they wait.
    bool named = false;
    for (const char* step : {"5", "6"})
      named =
          named || rank.errors.find(begin + step + " while training, after ") != std::string::npos;
    named = named &&
            rank.errors.find(std::string("over ") + name_of(axis) + " ranks ") != std::string::npos;
    if (rank.exit_code != 1 || !named)
      wrong += "rank " + std::to_string(r) + ": exit code " + std::to_string(rank.exit_code) +
               ": " + rank.errors;
    if (r == 1 || (victim == 1 && r == 2))
      std::printf("%4.1f s: %s", seconds, rank.errors.substr(rank.errors.find("rank ")).c_str());
  }
  return wrong;
}

// All jobs at once: those with a stopped rank wait most of their time.
int judge_axes() {
  using parallel::MeshAxis;
  std::vector<pid_t> judges;
  for (const char* what : {"throw", "kill", "stop"}) {
    for (const MeshAxis axis :
         {MeshAxis::tp, MeshAxis::cp, MeshAxis::dp, MeshAxis::pp, MeshAxis::ep}) {
      const int victim = static_cast<int>(judges.size()) % 4;
      std::fflush(nullptr);
      judges.push_back(fork());
      if (judges.back() != 0) continue;
      const std::string wrong = judge(axis, victim, what);
      if (!wrong.empty()) std::printf("FAIL %s on %s: %s\n", what, name_of(axis), wrong.c_str());
      std::fflush(nullptr);
      _exit(wrong.empty() ? 0 : 1);
    }
  }
  bool good = true;
  for (const pid_t judge : judges) {
    int status = 0;
    waitpid(judge, &status, 0);
    good = good && WIFEXITED(status) && WEXITSTATUS(status) == 0;
  }
  std::printf("%s axes\n", good ? "PASS" : "FAIL");
  return good ? 0 : 1;
}

}  // namespace
}  // namespace saturate::distributed

int main(int argc, char** argv) {
  const std::string mode = argc > 1 ? argv[1] : "";
  if (argc == 2 && mode == "axes") return saturate::distributed::judge_axes();
  if (argc > 3 || (mode != "collectives" && mode != "fail" && mode != "die")) {
    std::fprintf(stderr, "usage: %s collectives|fail|die [ranks], or axes\n", argv[0]);
    return 2;
  }
  try {
    return argc == 3 ? saturate::distributed::spawn(mode, std::atoi(argv[2]))
                     : saturate::distributed::run_rank(mode);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 2;
  }
}
