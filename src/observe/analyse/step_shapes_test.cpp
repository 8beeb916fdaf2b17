// SPDX-License-Identifier: Apache-2.0
// Steps of programs as frameworks run them, without marks: each is a few lines that issue what such
// a program issues, and knows its own number of steps and their times.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "observe/analyse/analyser.h"
#include "observe/testing/simulator.h"

namespace saturate::observe {
namespace {

using testing::Simulator;

constexpr int64_t kUs = 1'000, kMs = 1'000'000;

struct Program {
  const char* name;
  int steps;
  std::function<void(Simulator&, int)> step;
  // Before the first step, and after step `i`: what is no part of any.
  std::function<void(Simulator&)> start = {};
  std::function<void(Simulator&, int)> between = {};
};

struct Truth {
  double median_ns = 0;
  Analysis analysis;
};

Truth run(const Program& p) {
  Simulator s;
  if (p.start) p.start(s);
  std::vector<int64_t> lengths;
  for (int i = 0; i < p.steps; ++i) {
    const int64_t begin = s.now_ns();
    p.step(s, i);
    lengths.push_back(s.now_ns() - begin);
    if (p.between) p.between(s, i);
  }
  std::sort(lengths.begin(), lengths.end());
  Trace t = s.take();
  return {static_cast<double>(lengths[lengths.size() / 2]), analyse(t)};
}

// Whole steps are one fewer than begins; those beside which something else ran are irregular.
void expect_steps(const Program& p, int others = 0) {
  const Truth truth = run(p);
  const StepAnalysis& a = truth.analysis.steps;
  ASSERT_TRUE(a.found) << p.name;
  EXPECT_NEAR(static_cast<double>(a.count + a.warm_up), p.steps - 1 - others, 1 + 0.02 * p.steps)
      << p.name << ": " << a.rule;
  EXPECT_NEAR(a.median_ns / truth.median_ns, 1, 0.01) << p.name << ": " << a.rule;
}

void layers(Simulator& s, int n, const std::string& pass, int64_t blocks = 1024) {
  for (int i = 0; i < n; ++i) {
    s.kernel("gemm_qkv_" + pass, 30 * kUs, 7, blocks);
    s.kernel("attention_" + pass, 40 * kUs, 7, blocks);
    s.kernel("gelu_" + pass, 10 * kUs, 7, blocks);
  }
}

void optimizer(Simulator& s) {
  for (int i = 0; i < 3; ++i) s.kernel("multi_tensor_apply_kernel<FusedAdam>", 20 * kUs);
}

TEST(StepShapes, Jax) {
  // Batches are drawn on the host and go by a stream of their own; a step is one graph.
  Program p{"JAX, a graph", 300, [](Simulator& s, int) {
              s.host(3 * kMs);
              s.copy_in(1 << 20, 40 * kUs, false, 13);
              s.copy_in(1 << 12, 5 * kUs, false, 13);
              s.graph(1, 800 * kUs);
            }};
  p.start = [](Simulator& s) {  // tries kernels, then compiles
    for (int i = 0; i < 900; ++i) s.kernel("try_" + std::to_string(i % 37), 20 * kUs, 7, i);
    s.host(4'000 * kMs);
  };
  expect_steps(p);
  p.name = "JAX, kernels and a loss now and then";
  p.step = [](Simulator& s, int i) {
    s.host(kMs);
    s.copy_in(1 << 20, 40 * kUs, false, 13);
    for (int k = 0; k < 12; ++k) s.kernel("loop_fusion_" + std::to_string(k), 15 * kUs);
    s.synchronize();
    if (i % 10 == 9) s.kernel("reduce_mean", 3 * kUs), s.copy_out(4, 2 * kUs, true);
  };
  expect_steps(p);
}

// Copies are most of the operations and lie close together: their distances are no steps.
TEST(StepShapes, WholeGraphsOfSeveralShapes) {
  Program p{"a graph for each length", 400, [](Simulator& s, int i) {
              s.host(200 * kUs);
              for (int k = 0; k < 3; ++k) s.copy_in(1 << 14, 6 * kUs, false);
              s.graph(2 + i * 7 % 5, (8 + i * 7 % 5) * kMs);
              s.copy_out(8, 2 * kUs, false);
              s.synchronize();
            }};
  expect_steps(p);
  p.name = "validation and checkpoints between them";
  p.between = [](Simulator& s, int i) {
    if (i % 100 != 99) return;
    for (int k = 0; k < 20; ++k) {
      s.copy_in(1 << 14, 6 * kUs, false);
      s.graph(20 + k % 3, 2 * kMs);
    }
    s.synchronize();
    for (int k = 0; k < 60; ++k) s.copy_out(1 << 24, 700 * kUs, true);
    s.host(300 * kMs);
  };
  expect_steps(p, 3);
}

TEST(StepShapes, CompiledWithGraphs) {
  expect_steps({"forward, backward and the optimizer", 200, [](Simulator& s, int) {
                  s.host(kMs);
                  s.copy_in(1 << 20, 40 * kUs, false);
                  s.graph(1, 2 * kMs);
                  s.kernel("loss", 5 * kUs);
                  s.graph(2, 4 * kMs);
                  optimizer(s);
                  s.synchronize();
                }});
}

TEST(StepShapes, Eager) {
  Program p{"logging", 120, [](Simulator& s, int i) {
              s.copy_in(1 << 20, 40 * kUs, false);
              layers(s, 12, "fwd");
              layers(s, 12, "bwd");
              optimizer(s);
              s.host(500 * kUs);
              s.synchronize();
              if (i % 10 == 9) s.kernel("mean", 5 * kUs), s.copy_out(4, 2 * kUs, true);
            }};
  expect_steps(p);
  p.name = "validation every 30 steps";
  p.between = [](Simulator& s, int i) {
    for (int k = 0; i % 30 == 29 && k < 12; ++k) {
      s.copy_in(1 << 20, 40 * kUs, false);
      layers(s, 12, "fwd");
    }
    s.synchronize();
  };
  expect_steps(p, 3);
  p.name = "epochs of eight steps with a pause";
  p.between = [](Simulator& s, int i) {
    if (i % 8 == 7) s.wait(SpanKind::blocked, "workers start", 400 * kMs);
  };
  expect_steps(p);
}

// The step is the optimizer's, also when nothing is named so.
TEST(StepShapes, MicroBatches) {
  for (const bool named : {true, false}) {
    expect_steps(
        {named ? "optimizer by name" : "optimizer without a name", 60, [named](Simulator& s, int) {
           for (int micro = 0; micro < 4; ++micro) {
             s.copy_in(1 << 20, 40 * kUs, false);
             layers(s, 4, "fwd");
             layers(s, 4, "bwd");
           }
           if (named) optimizer(s);
           for (int k = 0; !named && k < 8; ++k) s.kernel("elementwise_update", 60 * kUs);
           s.synchronize();
         }});
  }
}

// Layers are alike and many, and no step: a token is, whose head and read-back they lead to.
TEST(StepShapes, LayersAreNoSteps) {
  expect_steps({"tokens", 80, [](Simulator& s, int) {
                  layers(s, 24, "fwd");
                  s.kernel("head", 90 * kUs);
                  s.copy_out(8, 2 * kUs, true);
                }});
}

TEST(StepShapes, LengthsThatVary) {
  std::mt19937 random(5);
  expect_steps({"a recurrent net", 150, [&](Simulator& s, int) {
                  const int length = 20 + static_cast<int>(random() % 60);
                  s.copy_in(1 << 14, 6 * kUs, false);
                  for (int k = 0; k < length; ++k) {
                    s.kernel("gemm_cell", 12 * kUs);
                    s.kernel("cell", 6 * kUs);
                  }
                  s.kernel("loss", 5 * kUs);
                  for (int k = 0; k < length; ++k) s.kernel("gemm_cell_backward", 20 * kUs);
                  optimizer(s);
                  s.synchronize();
                }});
  expect_steps({"grids by length", 150, [&](Simulator& s, int) {
                  const int64_t blocks = 200 + static_cast<int64_t>(random() % 60) * 10;
                  s.host(600 * kUs);
                  s.copy_in(1 << 14, 6 * kUs, false);
                  layers(s, 6, "fwd", blocks);
                  layers(s, 6, "bwd", blocks);
                  s.kernel("update", 50 * kUs);
                  s.synchronize();
                }});
}

TEST(StepShapes, ArraysAndPlainLoops) {
  expect_steps({"CuPy", 250, [](Simulator& s, int) {
                  for (int k = 0; k < 6; ++k) {
                    s.kernel("cupy_multiply__float32", 20 * kUs);
                    s.kernel("cupy_add__float32", 20 * kUs);
                  }
                  s.copy_out(4, 2 * kUs, true);
                }});
  expect_steps({"kernels all alike, a wait", 250, [](Simulator& s, int) {
                  for (int k = 0; k < 7; ++k) s.kernel("stencil", 50 * kUs);
                  s.synchronize();
                }});
  expect_steps({"a graph alone, looked at now and then", 300, [](Simulator& s, int i) {
                  s.host(400 * kUs);
                  s.graph(1, 300 * kUs);
                  if (i % 50 == 49) s.synchronize();
                }});
  expect_steps({"nothing but copies", 200, [](Simulator& s, int) {
                  s.host(100 * kUs);
                  s.copy_in(1 << 24, 500 * kUs, true);
                  s.copy_in(1 << 10, 5 * kUs, true);
                  s.copy_out(1 << 22, 200 * kUs, true);
                }});
}

}  // namespace
}  // namespace saturate::observe
