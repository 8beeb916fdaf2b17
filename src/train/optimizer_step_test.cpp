// SPDX-License-Identifier: Apache-2.0
// The norm over ranks that hold different parameters: each element of the model counts once.
#include "train/optimizer_step.h"

#include <gtest/gtest.h>

#include <cmath>

#include "parallel/lockstep.h"

namespace saturate::train {
namespace {

using Axis = Layout::Axis;

double gradient_at(int64_t number, int64_t element) {
  return std::sin(0.37 * static_cast<double>(element) + static_cast<double>(number));
}

// A stage has a whole parameter, one that tp cuts and one that ep cuts; of stage 1 they are numbers
// 3, 4 and 5. Returns the sum of squares.
double norm_of(parallel::Communicator& ranks, const parallel::MeshExtents& extents) {
  const Layout layout(ranks, extents);
  ParameterStore store({}, DType::f64);
  const int64_t stages = 6 / 3 / extents.pp;  // of the model's two, on this rank
  for (int64_t i = 0; i < 3 * stages; ++i) {
    const int64_t number = i + 3 * stages * layout.coordinate(Axis::pp);
    ParameterSpec whole{
        .name = "p" + std::to_string(number), .rows = 4, .cols = 5000, .number = number};
    if (number % 3 == 1) whole.shard.cuts = {{0, Axis::tp}};
    if (number % 3 == 2) whole.shard.cuts = {{0, Axis::ep}};
    store.add(part_of(whole, layout.mesh(), layout.rank()));
  }
  store.allocate(Purpose::training);
  for (const ParameterSpec& p : store.specs()) {
    auto* g = static_cast<double*>(store.gradient(store.find(p.name)));
    const std::vector<parallel::ShardRun> all{{0, p.size()}};
    for (const parallel::ShardRun& run : p.whole.rows > 0 ? p.whole.runs : all)
      for (int64_t e = run.global_offset; e < run.global_offset + run.length; ++e)
        *g++ = gradient_at(p.number, e);
  }
  const Stream stream(Device{});
  const OptimizerStep optimizer(store, {}, 1, stream, ranks, layout);
  parallel::require_matching(ranks, optimizer.collectives());
  StepState state;
  state.totals[2] = 1;
  StepRecord record;
  optimizer.enqueue({}, stream, &state, &record, 1);
  return state.grad_square_sum;
}

TEST(OptimizerStep, CountsEachElementOnce) {
  double want = 0;
  for (int64_t number = 0; number < 6; ++number)
    for (int64_t e = 0; e < 20000; ++e) want += std::pow(gradient_at(number, e), 2);
  for (const parallel::MeshExtents& extents :
       std::vector<parallel::MeshExtents>{{},
                                          {.dp = 2},
                                          {.tp = 2},
                                          {.tp = 2, .dp = 2},
                                          {.dp = 4, .ep = 2},
                                          {.tp = 2, .dp = 2, .ep = 4},
                                          {.cp = 2, .pp = 2},
                                          {.tp = 2, .dp = 2, .pp = 2, .ep = 2}}) {
    const int n = extents.tp * extents.cp * extents.dp * extents.pp;
    std::vector<double> sums(static_cast<size_t>(n));
    parallel::run_lockstep(n, [&](parallel::Communicator& c) {
      sums[static_cast<size_t>(c.rank())] = norm_of(c, extents);
    });
    EXPECT_NEAR(sums[0], want, 1e-12 * want) << n;
    for (const double sum : sums) EXPECT_EQ(sum, sums[0]) << n;
  }
}

}  // namespace
}  // namespace saturate::train
