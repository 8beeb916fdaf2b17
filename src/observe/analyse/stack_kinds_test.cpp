// SPDX-License-Identifier: Apache-2.0
#include "observe/analyse/stack_kinds.h"

#include <gtest/gtest.h>

#include "observe/analyse/compile_times.h"
#include "observe/testing/stacks.h"

namespace saturate::observe {
namespace {

using testing::stack_of;

constexpr const char* kMain = "/home/a/train.py";
#define PACKAGES "/opt/lib/python3.12/site-packages/"

TEST(StackKinds, WhatMakesCodeIsToldFromWhatRunsIt) {
  Trace t;
  const uint32_t traced =
      stack_of(t, {{"main", kMain, 9},
                   {"_fn", PACKAGES "torch/_dynamo/eval_frame.py", 800},
                   {"ConvertFrame.__call__", PACKAGES "torch/_dynamo/convert_frame.py", 1400},
                   {"trace", PACKAGES "torch/_dynamo/symbolic_convert.py", 3}});
  const uint32_t runs =
      stack_of(t, {{"main", kMain, 9},
                   {"_fn", PACKAGES "torch/_dynamo/eval_frame.py", 800},
                   {"CompiledFxGraph.__call__", PACKAGES "torch/_inductor/output_code.py", 600},
                   {"run", PACKAGES "torch/_inductor/runtime/triton_heuristics.py", 1200}});
  const uint32_t tunes =
      stack_of(t, {{"main", kMain, 9},
                   {"CachingAutotuner.benchmark_all_configs",
                    PACKAGES "torch/_inductor/runtime/triton_heuristics.py", 900}});
  const uint32_t xla = stack_of(
      t, {{"main", kMain, 9}, {"backend_compile_and_load", PACKAGES "jax/_src/compiler.py", 395}});
  const uint32_t native = stack_of(
      t, {{"attend", kMain, 59}, {"(no symbol)", PACKAGES "nvidia/cu13/lib/libnvrtc.so.13", 0}});
  const uint32_t imported =
      stack_of(t, {{"main", kMain, 9},
                   {"<module>", PACKAGES "torch/_dynamo/convert_frame.py", 3},
                   {"_call_with_frames_removed", "<frozen importlib._bootstrap>", 488}});
  const StackKinds kinds(t);
  for (const uint32_t stack : {traced, tunes, xla, native}) EXPECT_TRUE(kinds.compiles(stack));
  for (const uint32_t stack : {runs, imported}) EXPECT_FALSE(kinds.compiles(stack));
}

TEST(StackKinds, AnArrayIsReadWhereItsValueIsAskedFor) {
  Trace t;
  const uint32_t value = stack_of(t, {{"main", kMain, 9},
                                      {"ArrayImpl.__float__", PACKAGES "jax/_src/array.py", 300},
                                      {"ArrayImpl._value", PACKAGES "jax/_src/array.py", 637}});
  const uint32_t ready =
      stack_of(t, {{"main", kMain, 9}, {"block_until_ready", PACKAGES "jax/_src/api.py", 3000}});
  const uint32_t shape =
      stack_of(t, {{"main", kMain, 9}, {"ArrayImpl.shape", PACKAGES "jax/_src/array.py", 200}});
  const uint32_t own = stack_of(t, {{"main", kMain, 9}, {"Meter._value", kMain, 30}});
  const StackKinds kinds(t);
  for (const uint32_t stack : {value, ready}) EXPECT_TRUE(kinds.reads_value(stack));
  for (const uint32_t stack : {shape, own}) EXPECT_FALSE(kinds.reads_value(stack));
}

TEST(StackKinds, DataAreMadeWhereTheNextIsAskedFor) {
  Trace t;
  const uint32_t none = stack_of(t, {{"main", kMain, 9},
                                     {"__next__", PACKAGES "torch/utils/data/dataloader.py", 730},
                                     {"fetch", PACKAGES "torch/utils/data/_utils/fetch.py", 54},
                                     {"Photos.__getitem__", kMain, 41}});
  const uint32_t worker =
      stack_of(t, {{"_worker_loop", PACKAGES "torch/utils/data/_utils/worker.py", 349},
                   {"fetch", PACKAGES "torch/utils/data/_utils/fetch.py", 54},
                   {"Photos.__getitem__", kMain, 41}});
  const uint32_t own =
      stack_of(t, {{"main", kMain, 9}, {"Batches.__next__", kMain, 30}, {"crop", kMain, 12}});
  const uint32_t hub =
      stack_of(t, {{"main", kMain, 9},
                   {"IterableDataset.__iter__", PACKAGES "datasets/iterable_dataset.py", 2}});
  const uint32_t drawn = stack_of(
      t, {{"main", kMain, 9},
          {"__next__", PACKAGES "torch/utils/data/dataloader.py", 730},
          {"WeightedRandomSampler.__iter__", PACKAGES "torch/utils/data/sampler.py", 277}});
  const uint32_t called = stack_of(t, {{"main", kMain, 9}, {"features", kMain, 30}});
  const uint32_t bar =
      stack_of(t, {{"main", kMain, 9}, {"tqdm.__next__", PACKAGES "tqdm/std.py", 1}});
  const StackKinds kinds(t);
  for (const uint32_t stack : {none, own, hub, drawn}) EXPECT_TRUE(kinds.makes_data(stack));
  for (const uint32_t stack : {worker, called, bar}) EXPECT_FALSE(kinds.makes_data(stack));
}

TEST(StackKinds, AHookInTheBackwardPassHasItsOwnLine) {
  Trace t;
  const uint32_t backward =
      stack_of(t, {{"main", kMain, 9},
                   {"_engine_run_backward", PACKAGES "torch/autograd/graph.py", 869},
                   {"(no symbol)", PACKAGES "torch/lib/libtorch_cpu.so", 0}});
  const uint32_t hook =
      stack_of(t, {{"main", kMain, 9},
                   {"_engine_run_backward", PACKAGES "torch/autograd/graph.py", 869},
                   {"on_gradient", kMain, 30}});
  const StackKinds kinds(t);
  EXPECT_TRUE(kinds.is_backward(backward));
  EXPECT_FALSE(kinds.is_backward(hook));
}

TEST(StackKinds, WhatPrintsNeedsValues) {
  Trace t;
  const uint32_t prints = stack_of(
      t, {{"main", kMain, 9}, {"_Formatter.__init__", PACKAGES "torch/_tensor_str.py", 204}});
  const uint32_t computes = stack_of(t, {{"main", kMain, 9}, {"mean", PACKAGES "numpy/x.py", 4}});
  const StackKinds kinds(t);
  EXPECT_TRUE(kinds.prints(prints));
  EXPECT_FALSE(kinds.prints(computes));
}

TEST(StackKinds, CheckpointedLayersRunAgainInTheBackwardPassOnly) {
  Trace t;
  const char* file = PACKAGES "torch/utils/checkpoint.py";
  const uint32_t first =
      stack_of(t, {{"main", kMain, 9}, {"checkpoint", file, 480}, {"Block.forward", kMain, 30}});
  const uint32_t again =
      stack_of(t, {{"_checkpoint_hook.__init__.<locals>.unpack_hook", file, 1173},
                   {"_checkpoint_without_reentrant_generator.<locals>.recompute_fn", file, 1607},
                   {"Block.forward", kMain, 30}});
  const uint32_t old =
      stack_of(t, {{"CheckpointFunction.backward", file, 300}, {"Block.forward", kMain, 30}});
  const uint32_t other =
      stack_of(t, {{"Function.backward", PACKAGES "torch/autograd/function.py", 300}});
  const StackKinds kinds(t);
  for (const uint32_t stack : {again, old}) EXPECT_TRUE(kinds.computes_again(stack));
  for (const uint32_t stack : {first, other}) EXPECT_FALSE(kinds.computes_again(stack));
}

TEST(CompileTimes, ReachFromSampleToSampleAndHalfWayToOthers) {
  Trace t;
  const uint32_t thread = t.threads.add({7, 7});
  t.calls.push_back({0, 1, 1, t.names.add("cudaLaunchKernel"), thread});
  const uint32_t makes = stack_of(t, {{"backend_compile", PACKAGES "jax/_src/compiler.py", 1}}),
                 other = stack_of(t, {{"main", kMain, 1}});
  constexpr int64_t kMs = 1'000'000;
  for (int64_t ms = 0; ms < 200; ms += 10)
    t.samples.push_back({ms * kMs, ms * kMs, 1, thread, ms >= 50 && ms < 150 ? makes : other, 0, 0,
                         kNoStack, HostState::running});
  const CompileTimes times(t);
  EXPECT_TRUE(times.at(7, 46 * kMs, 60 * kMs));
  EXPECT_TRUE(times.within(7, 100 * kMs));
  EXPECT_FALSE(times.within(7, 46 * kMs)) << "what was issued there may come after it";
  EXPECT_FALSE(times.at(7, 0, 46 * kMs));
  EXPECT_FALSE(times.at(7, 150 * kMs, 200 * kMs));
  EXPECT_FALSE(times.at(8, 100 * kMs, 110 * kMs));
  EXPECT_FALSE(times.within(8, 100 * kMs));
}

}  // namespace
}  // namespace saturate::observe
