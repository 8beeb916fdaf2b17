// SPDX-License-Identifier: Apache-2.0
// Steps of programs as frameworks run them, without marks: each is a few lines that issue what such
// a program issues, and knows its own number of steps and their times.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "observe/analyse/analyser.h"
#include "observe/testing/simulator.h"
#include "observe/testing/tell.h"

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
  expect_steps({"equal layers behind a copy that holds the host", 150, [](Simulator& s, int) {
                  s.copy_in(1 << 26, 8 * kMs, true);
                  s.kernel("unrolled_elementwise_kernel<float16_copy>", 30 * kUs);
                  for (int k = 0; k < 8; ++k) {
                    s.host(10 * kUs);
                    s.kernel("nvjet_tst_128x256", 180 * kUs, 7, 132);
                    s.kernel("vectorized_elementwise_kernel<relu>", 20 * kUs);
                  }
                }});
  expect_steps({"nothing but copies", 200, [](Simulator& s, int) {
                  s.host(100 * kUs);
                  s.copy_in(1 << 24, 500 * kUs, true);
                  s.copy_in(1 << 10, 5 * kUs, true);
                  s.copy_out(1 << 22, 200 * kUs, true);
                }});
}

// Each new shape has the kernels of its convolutions tried, which takes twenty times a step: what
// repeats explains little of the time, and longer stretches explain more by averaging.
void convolutions(Simulator& s, int shape, bool tries) {
  static std::mt19937 random(3);
  s.kernel("image_copy", 30 * kUs, 7, 100 + shape);
  for (int layer = 0; layer < 6; ++layer) {
    for (int k = 0; tries && k < 25; ++k) {
      s.call("cudaMemsetAsync", 3 * kUs);
      s.kernel("conv_algorithm_" + std::to_string(random() % 40), 60 * kUs, 7, 50 + shape);
      if (k % 5 == 0) s.synchronize();
    }
    if (tries) s.host(9 * kMs);
    s.kernel("conv_algorithm_" + std::to_string(shape % 3), 150 * kUs, 7, 50 + shape);
    s.kernel("relu", 40 * kUs, 7, 50 + shape);
  }
  for (const char* name : {"softmax_forward", "nll_forward", "nll_backward", "softmax_backward"})
    s.kernel(name, 20 * kUs, 7, 70 + shape);
  for (int layer = 0; layer < 6; ++layer)
    s.kernel("conv_algorithm_" + std::to_string(4 + shape % 3), 300 * kUs, 7, 50 + shape);
  s.kernel("multi_tensor_apply_kernel", 15 * kUs);
}

TEST(StepShapes, KernelsTriedForEachNewShape) {
  std::mt19937 random(7);
  std::vector<bool> seen(36);
  const Program p{"autotuning", 170, [&](Simulator& s, int) {
                    const auto shape = static_cast<int>(random() % seen.size());
                    convolutions(s, shape, !seen[static_cast<size_t>(shape)]);
                    seen[static_cast<size_t>(shape)] = true;
                  }};
  const StepAnalysis a = run(p).analysis.steps;  // the host runs ahead: it has no times of steps
  EXPECT_NEAR(static_cast<double>(a.count + a.warm_up), p.steps - 1, 4) << a.rule;
}

// Code is made, and tried on the device, for longer than the steps take that follow.
TEST(StepShapes, StepsThatFollowALongBuild) {
  const auto found = [](bool sampled) {
    Simulator s;
    testing::Phases phases;
    const std::vector<testing::Frame> compiles = {
        {"main", "/home/a/train.py", 115, "update(model, x)"},
        {"backend_compile_and_load", "/v/site-packages/jax/_src/compiler.py", 395}};
    std::mt19937 random(5);
    for (int i = 0; i < 900; ++i) {
      phases.work(s, (5 + static_cast<int>(random() % 40)) * 1'000 * kUs, compiles);
      s.kernel("tried_" + std::to_string(i), (50 + static_cast<int>(random() % 4'000)) * kUs, 7,
               20 + i);
    }
    for (int i = 0; i < 60; ++i) {
      s.host(9'000 * kUs);
      s.graph(99, 11'000 * kUs);
      s.synchronize();
    }
    Trace trace = s.take();
    if (sampled) phases.sample(trace);
    return analyse(trace);
  };
  EXPECT_FALSE(found(false).steps.found);
  const Analysis a = found(true);
  ASSERT_TRUE(a.steps.found);
  EXPECT_NEAR(static_cast<double>(a.steps.count + a.steps.warm_up), 59, 1);
  EXPECT_NE(a.notes.back().find("outside of the steps code was traced"), std::string::npos)
      << a.notes.back();
}

// Runs of one program in a process: the second evaluates for the first time, and code is made for that.
TEST(StepShapes, CodeThatIsMadeOnceBetweenStepsIsNoneOfTheirs) {
  const auto run_with = [](int builds) {
    Simulator s;
    testing::Phases phases;
    const std::vector<testing::Frame> compiles = {
        {"main", "/home/a/train.py", 398, "model(inputs)"},
        {"compile_fx", "/v/site-packages/torch/_inductor/compile_fx.py", 700}};
    for (int i = 0; i < 160; ++i) {
      for (int k = 0; i % 8 == 2 && i / 8 < builds && k < 240 / builds; ++k)
        phases.work(s, 40'000 * kUs, compiles);
      for (int layer = 0; layer < 12; ++layer) s.kernel("sm90_gemm_bf16bf16", 700 * kUs);
      s.kernel("multi_tensor_apply_kernel", 300 * kUs);
    }
    Trace trace = s.take();
    phases.sample(trace);
    return analyse(trace);
  };
  const Analysis once = run_with(4);
  ASSERT_TRUE(once.steps.found);
  EXPECT_LT(
      once.devices.front().budget[Leaf::code_load] + once.devices.front().budget[Leaf::host_code],
      once.devices.front().budget.total_ns() / 20);
  EXPECT_NEAR(static_cast<double>(once.steps.count), 160 - 27, 3);
  EXPECT_NE(once.notes.back().find("outside of the steps code was traced"), std::string::npos)
      << once.notes.back();
  const Analysis again = run_with(19);  // for one step in eight
  EXPECT_GT(again.devices.front().budget.total_ns(), 5'000'000 * kUs);
}

// Parts of uneven lengths, each of which reads values and updates weights of its own.
TEST(StepShapes, PartsWithTheirOwnUpdatesAreNoSteps) {
  expect_steps({"uneven parts", 70, [](Simulator& s, int) {
                  for (const int length : {4, 30, 11}) {
                    for (int k = 0; k < length; ++k) {
                      s.kernel("gather_rows", 30 * kUs, 7, 40 * length);
                      s.kernel("mask_rows", 20 * kUs, 7, 40 * length);
                      if (k % 3 == 0) s.copy_out(8, 2 * kUs, true);
                    }
                    s.kernel("multi_tensor_apply_kernel", 20 * kUs);
                  }
                  s.kernel("log_softmax", 25 * kUs);
                }});
}

// Names of lambdas hold "lamb", an optimizer's name: equal layers were taken for steps.
TEST(StepShapes, LambdasAreNoOptimizers) {
  expect_steps({"layers with lambdas", 120, [](Simulator& s, int) {
                  s.copy_in(64 << 20, 7 * kMs, true);
                  for (int k = 0; k < 8; ++k) {
                    s.kernel("nvjet_tst_128x256", 180 * kUs, 7, 132);
                    s.kernel("vectorized_elementwise_kernel<relu::{lambda(float)#1}>", 10 * kUs);
                  }
                  s.synchronize();
                }});
}

// Hooks that pile up: each step has one kernel more than the one before, and all of them are steps.
TEST(StepShapes, StepsThatGrowByLittle) {
  const Program p{"hooks", 200, [](Simulator& s, int i) {
                    layers(s, 6, "fwd");
                    for (int k = 0; k < i; ++k) s.kernel("mul_add", 3 * kUs);
                    layers(s, 6, "bwd");
                    optimizer(s);
                    s.copy_out(8, 2 * kUs, true);
                  }};
  const StepAnalysis a = run(p).analysis.steps;
  EXPECT_LE(a.irregular, 20) << a.rule;
  EXPECT_GT(a.drift, 1.1);
}

// The pictures of an epoch are cut and mixed at once, and the host meets the device there alone.
TEST(StepShapes, EpochsAreNoSteps) {
  const Program p{"epochs",
                  2 * 97 + 10,
                  [](Simulator& s, int) {
                    layers(s, 6, "fwd");
                    s.kernel("nll_loss_forward", 5 * kUs);
                    layers(s, 6, "bwd");
                    optimizer(s);
                  },
                  {},
                  [](Simulator& s, int i) {
                    if (i % 97 != 3) return;
                    s.copy_out(8, 2 * kUs, true);
                    for (int k = 0; k < 20; ++k) s.kernel("index_elementwise_kernel", kMs);
                  }};
  const StepAnalysis a = run(p).analysis.steps;
  ASSERT_TRUE(a.found);
  EXPECT_NEAR(static_cast<double>(a.count + a.warm_up), 203, 6) << a.rule;
}

// Slow for long is no warm-up: the cores are short, or the batches are of another kind.
TEST(StepShapes, WarmUpIsShort) {
  Program p{"a slow third", 90, [](Simulator& s, int i) {
              s.host(i < 30 ? 8 * kMs : kMs);
              layers(s, 6, "fwd");
              optimizer(s);
              s.copy_out(8, 2 * kUs, true);
            }};
  EXPECT_LE(run(p).analysis.steps.warm_up, 20);
  EXPECT_GE(run(p).analysis.steps.count, 68);
}

// A program drawn at random: layers, micro-batches, lengths and shapes that vary, logging,
// validation, checkpoints, pauses between epochs, what runs before. Whether its steps are found.
bool found_in_random_program(uint32_t seed) {
  std::mt19937 random(seed);
  const auto from_to = [&](int low, int high) {
    return low + static_cast<int>(random() % static_cast<uint32_t>(high - low + 1));
  };
  const auto chance = [&](int percent) { return from_to(0, 99) < percent; };
  const auto every = [&](int percent, int low, int high) {
    const int n = from_to(low, high);
    return chance(percent) ? n : INT32_MAX;
  };
  const int layers = from_to(2, 24), kinds = from_to(1, 6), steps = from_to(30, 150);
  const bool trains = chance(75), graphs = chance(25), copies = chance(70), shapes = chance(25),
             varies = !graphs && chance(25), named = chance(60), looks = chance(30);
  const int micro = trains && chance(25) ? from_to(2, 8) : 1, updates = from_to(4, 40);
  const int log = every(40, 5, 50), validate = every(25, 15, 60), store = every(20, 5, 50),
            epoch = every(20, 8, 30), before = chance(50) ? from_to(50, 1000) : 0;
  const int64_t host = chance(50) ? from_to(10, 3000) * kUs : 5 * kUs,
                kernel = from_to(5, 200) * kUs;
  Simulator s;
  for (int i = 0; i < before; ++i)
    s.kernel("before_" + std::to_string(from_to(0, 40)), from_to(2, 50) * kUs, 7, from_to(1, 500));
  const auto pass = [&](const std::string& name, int n, int64_t blocks) {
    for (int l = 0; l < n; ++l)
      for (int k = 0; k < kinds; ++k)
        s.kernel(name + std::to_string(k), kernel + k * kernel / 4, 7, blocks);
  };
  std::vector<int64_t> lengths;
  int64_t sum = 0;
  for (int i = 1; i <= steps; ++i) {
    const int64_t begin = s.now_ns();
    s.host(host);
    for (int m = 0; m < micro; ++m) {
      const int64_t blocks = shapes ? 100 + 10 * from_to(0, 20) : 512;
      const int n = varies ? from_to((layers + 1) / 2, layers * 2) : layers;
      if (copies) s.copy_in(1 << 20, 40 * kUs, false, 13), s.copy_in(1 << 12, 4 * kUs, false);
      if (graphs) {
        s.graph(shapes ? from_to(1, 5) : 1, layers * kernel);
      } else {
        pass("forward", n, blocks);
        s.kernel("loss", 4 * kUs);
        if (trains) pass("backward", n, blocks);
      }
    }
    for (int k = 0; trains && k < updates; ++k)
      s.kernel(named ? "multi_tensor_apply" : "update", 9 * kUs, 7, 256 + k);
    if (looks)
      s.copy_out(4, 2 * kUs, true);
    else
      s.synchronize();
    if (i % log == 0) s.kernel("mean", 4 * kUs), s.copy_out(4, 2 * kUs, true);
    for (int k = 0; i % store == 0 && k < 20; ++k) s.copy_out(1 << 22, 300 * kUs, true);
    lengths.push_back(s.now_ns() - begin);
    sum += lengths.back();
    for (int k = 0; i % validate == 0 && k < 10; ++k) {
      if (copies) s.copy_in(1 << 20, 40 * kUs, false);
      if (graphs)
        s.graph(21, layers * kernel);
      else
        pass("forward", layers, 600);
    }
    s.synchronize();
    if (i % epoch == 0) s.wait(SpanKind::blocked, "workers", 300 * kMs);
  }
  Trace t = s.take();
  const StepAnalysis a = analyse(t).steps;
  const double mean = static_cast<double>(sum) / steps;
  std::sort(lengths.begin(), lengths.end());
  const auto median = static_cast<double>(lengths[lengths.size() / 2]);
  return a.found && a.count + a.warm_up > 7 * steps / 10 &&
         (std::abs(a.median_ns / median - 1) < 0.03 || std::abs(a.mean_ns / mean - 1) < 0.05);
}

// Some have no answer: five equal micro-batches and one short update are five steps as well.
TEST(StepShapes, RandomPrograms) {
  int right = 0;
  for (uint32_t seed = 0; seed < 80; ++seed) right += found_in_random_program(seed);
  EXPECT_GE(right, 76);  // 77
}

}  // namespace
}  // namespace saturate::observe
