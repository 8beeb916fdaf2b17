// SPDX-License-Identifier: Apache-2.0
// saturate_nccl_test [ranks]: starts one rank per GPU itself (default: all GPUs, at most 4). Prints
// one line for each check and PASS or FAIL at the end; exit code 77 means skipped (fewer than two
// GPUs).
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "base/error.h"
#include "distributed/checks.h"

namespace saturate::distributed {
namespace {

constexpr int kSkipped = 77;

int run_rank(const std::string& mode) {
  const parallel::LaunchInfo launch = parallel::current_launch();
  const Device device{DeviceKind::cuda, launch.local_rank};
  use_device(device);
  const auto communicator = parallel::make_communicator(device, launch);
  try {
    if (mode == "collectives") check_collectives(*communicator, device);
    if (mode == "captured") check_captured(*communicator, device);
    if (mode == "fail" || mode == "die")
      step_until_failure(*communicator, device, communicator->size() - 1, [&] {
        if (mode == "die") kill(getpid(), SIGKILL);
        throw Error(Errc::io, "checkpoint", "no space left on /data");
      });
    return 0;
  } catch (const std::exception& e) {
    communicator->report_failure(e);
  }
  return 2;
}

// Runs `mode` on `size` ranks and judges how each ended.
bool judge(const std::string& mode, int size) {
  const bool fails = mode == "fail" || mode == "die";
  const auto ranks = spawn_ranks(size, 90, [&] {
    try {
      return run_rank(mode);
    } catch (const std::exception& e) {
      std::fprintf(stderr, "%s\n", e.what());
      return 2;
    }
  });
  const std::string line = "rank " + std::to_string(size - 1) + " failed at step ";
  bool good = true;
  double first = 1e9, last = 0;
  for (int r = 0; r < size; ++r) {
    const Rank& rank = ranks[static_cast<size_t>(r)];
    const bool killed = mode == "die" && r == size - 1;
    const bool as_expected = killed ? rank.exit_code == -SIGKILL
                                    : rank.exit_code == (fails ? 1 : 0) &&
                                          (!fails || rank.errors.find(line) != std::string::npos);
    if (!as_expected)
      std::printf("rank %d: exit code %d\n%s", r, rank.exit_code, rank.errors.c_str());
    good = good && as_expected;
    first = std::min(first, rank.seconds);
    last = std::max(last, rank.seconds);
  }
  good = good && (!fails || last - first < 10);
  std::printf("%s %s on %d GPUs, all ended within %.1f s of each other, %.1f s in all\n",
              good ? "ok  " : "BAD ", mode.c_str(), size, last - first, last);
  return good;
}

}  // namespace
}  // namespace saturate::distributed

int main(int argc, char** argv) {
  using namespace saturate::distributed;
  const int gpus = count_gpus();
  const int size = argc > 1 ? std::atoi(argv[1]) : std::min(gpus, 4);
  if (gpus < 2 || size < 2 || size > gpus) {
    std::printf("SKIP: %d GPUs are here and %d ranks were asked for; at least 2 are needed\n", gpus,
                size);
    return kSkipped;
  }
  bool good = true;
  for (const char* mode : {"collectives", "captured", "fail", "die"})
    good = judge(mode, size) && good;
  std::printf("%s\n", good ? "PASS" : "FAIL");
  return good ? 0 : 1;
}
