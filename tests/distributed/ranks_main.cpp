// SPDX-License-Identifier: Apache-2.0
// One rank on the CPU under any launcher:   mpirun -n 2 saturate_ranks_test collectives|fail|die
// With a number it starts that many ranks itself, as torchrun would:   saturate_ranks_test fail 3
#include <signal.h>
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
    const int expected = mode == "collectives" ? 0 : victim_of_kill ? -1 : 1;
    good = good && rank.exit_code == expected && (mode == "collectives" || rank.seconds < 10);
    std::fprintf(stderr, "%s", rank.errors.c_str());
    if (rank.exit_code != expected)
      std::fprintf(stderr, "rank %d: exit code %d, expected %d\n", r, rank.exit_code, expected);
  }
  std::printf("%s %s\n", good ? "PASS" : "FAIL", mode.c_str());
  return good ? 0 : 1;
}

}  // namespace
}  // namespace saturate::distributed

int main(int argc, char** argv) {
  const std::string mode = argc > 1 ? argv[1] : "";
  if (argc > 3 || (mode != "collectives" && mode != "fail" && mode != "die")) {
    std::fprintf(stderr, "usage: %s collectives|fail|die [ranks]\n", argv[0]);
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
