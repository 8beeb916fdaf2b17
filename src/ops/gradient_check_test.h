// SPDX-License-Identifier: Apache-2.0
// Test support: a small f64 model on the CPU whose gradients are compared with central differences.
#pragma once
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "ops/tape.h"

namespace saturate {

struct GradientCase {
  std::function<void(ParameterStore&)> declare;
  std::function<void(Tape&, double* totals)> record;  // up to and including cross_entropy
  uint64_t seed = 1;
};

struct GradientReport {
  double worst = 0;  // largest |analytic - numeric| / (1 + |numeric|)
  std::string where;
  int64_t checked = 0;
};

// Compares at most `per_parameter` elements of every parameter that trains, spread evenly. The loss must be
// recorded with grad_scale 1; parameters start as initialise() draws them, vectors moved off their
// constants. Also runs the tape twice over different rubbish in the arena: same bits, and nothing
// written behind it.
inline GradientReport check_gradients(const GradientCase& test, int64_t per_parameter = 10) {
  ParameterStore store({}, DType::f64);
  test.declare(store);
  store.allocate(ParameterStore::Purpose::training);
  const Stream stream(store.device());
  store.initialise(stream, test.seed);
  auto* w = store.masters().as<double>();
  for (int64_t i = 0; i < store.padded_count(); ++i) {
    w[i] += 0.1 * std::sin(0.7 * static_cast<double>(i) + static_cast<double>(test.seed));
  }

  const uint64_t rng_state[2] = {11, 3};
  double totals[4] = {};
  Tape tape(store, TapeMode::training, rng_state);
  test.record(tape, totals);
  tape.backward();
  const size_t planned = tape.plan();
  std::vector<char> arena(planned + 256);
  const auto loss = [&](char poison = '\xFF') {  // NaN everywhere
    totals[0] = totals[1] = totals[2] = 0;
    std::fill(arena.begin(), arena.end(), poison);
    tape.run({}, arena.data(), false);
    return totals[0];
  };
  const auto* g = store.gradients().as<double>();
  const double other = loss('\x3C');
  const std::vector<double> first(g, g + store.padded_count());
  EXPECT_EQ(loss(), other) << "the loss depends on what the arena held, or on the run";
  const std::vector<double> analytic(g, g + store.padded_count());
  EXPECT_TRUE(analytic == first) << "gradients depend on what the arena held, or on the run";
  EXPECT_TRUE(std::all_of(arena.begin() + static_cast<std::ptrdiff_t>(planned), arena.end(),
                          [](char c) { return c == '\xFF'; }))
      << "bytes behind the arena were written";

  GradientReport report;
  const double h = 1e-5;  // error of central differences about h^2 plus eps / h: 1e-10
  for (const ParameterSpec& p : store.specs()) {
    if (p.frozen) continue;
    const int64_t stride = std::max<int64_t>(1, p.size() / per_parameter);
    for (int64_t e = 0; e < p.size(); e += stride) {
      double& x = w[p.offset + e];
      const double before = x;
      x = before + h;
      const double up = loss();
      x = before - h;
      const double down = loss();
      x = before;
      const double numeric = (up - down) / (2 * h);
      const double got = analytic[static_cast<size_t>(p.offset + e)];
      const double error = std::fabs(got - numeric) / (1 + std::fabs(numeric));
      ++report.checked;
      if (!(error <= report.worst)) {  // NaN counts as worst
        report.worst = error;
        report.where = p.name + "[" + std::to_string(e) + "]: " + std::to_string(got) +
                       " against " + std::to_string(numeric);
      }
    }
  }
  return report;
}

}  // namespace saturate
