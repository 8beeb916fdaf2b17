// SPDX-License-Identifier: Apache-2.0
// Whole steps of four ranks in several layouts, over MPI (mpirun -n 4 saturate_layouts_test) or Gloo
// (saturate_layouts_test spawn), against the same on lockstep ranks, in f64.
#include <cstdio>
#include <string>

#include "base/error.h"
#include "distributed/checks.h"
#include "train/layout_harness_test.h"

namespace saturate::distributed {
namespace {

constexpr int kRanks = 4;
constexpr const char* kCases[] = {
    "translation dp=4,zero=0 4",      "gpt dp=4,zero=1 4",
    "translation dp=2,tp=2,zero=2 4", "gpt dp=2,tp=2,zero=3 4",
    "llama dp=2,cp=2,zero=1 4",       "translation dp=2,pp=2,zero=1 4",
    "gpt dp=1,tp=2,pp=2 4",           "gpt dp=1,pp=4,schedule=zero-bubble 4",
};

// Sums of the transport may be made in another order than the lockstep ranks'.
constexpr double kOrder = 1e-12;

int run_rank() {
  const auto ranks = parallel::make_communicator({}, parallel::current_launch());
  int done = 0;
  try {
    require(ranks->size() == kRanks, "start 4 ranks");
    for (const char* text : kCases) {
      const train::LayoutCase c = train::case_of(text);
      if (const std::string refusal = train::refusal_of(c); !refusal.empty()) {
        if (ranks->rank() == 0) std::printf("left out: %s: %s\n", text, refusal.c_str());
        continue;
      }
      const train::LayoutResult mine = train::run_layout(*ranks, train::task_of(c));
      if (ranks->rank() == 0) {
        const std::string wrong = first_beyond(distances(train::result_of(c), mine), kOrder);
        require(wrong.empty(), std::string(text) + ": " + wrong);
      }
      ++done;
    }
  } catch (const std::exception& e) {
    ranks->report_failure(e);
    return 2;
  }
  if (ranks->rank() == 0) std::printf("PASS %d layouts over %s\n", done, ranks->name());
  return done > 0 ? 0 : 1;
}

int spawn() {
  int worst = 0;
  for (const Rank& rank : spawn_ranks(kRanks, 240, run_rank)) {
    std::fprintf(stderr, "%s", rank.errors.c_str());
    if (rank.exit_code != 0) worst = 1;
  }
  return worst;
}

}  // namespace
}  // namespace saturate::distributed

int main(int argc, char** argv) {
  using namespace saturate::distributed;
  return argc == 2 && std::string(argv[1]) == "spawn" ? spawn() : run_rank();
}
