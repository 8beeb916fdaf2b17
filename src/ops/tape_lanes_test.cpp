// SPDX-License-Identifier: Apache-2.0
// Lanes as CUDA streams: eager and captured, against one stream.
#include <gtest/gtest.h>

#include "kernels/elementwise/elementwise.h"
#include "ops/tape.h"
#include "runtime/memory.h"

namespace saturate {
namespace {

constexpr int64_t kCount = int64_t{1} << 20;

// Weights w[i] = i + 1 are fetched on lane 1 (a copy, as a gather is one), sums x += w[i] run on
// lane 0, in two segments; arrays are large and the arena shared, so that an order that is wrong
// shows.
TEST(TapeLanesOnGpu, StreamsWaitForEachOther) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU";
  const Device gpu{DeviceKind::cuda, 0};
  const Stream first(gpu), second(gpu);
  constexpr int64_t kWeights = 12;
  std::vector<float> host(kWeights * kCount);
  for (size_t i = 0; i < host.size(); ++i) host[i] = static_cast<float>(i / kCount + 1);
  const Buffer weights(gpu, host.size() * sizeof(float)), result(gpu, kCount * sizeof(float));
  copy_to_device(first, weights.data(), host.data(), weights.bytes());
  first.synchronize();

  ParameterStore store(gpu, DType::f32);
  Tape t(store, TapeMode::inference, nullptr);
  Value x;
  for (int64_t i = 0; i < kWeights; ++i) {
    if (i == kWeights / 2) t.segment("second");
    const Value from = t.external("shard", DType::f32, 1, kCount, weights.as<float>() + i * kCount);
    const Value w = t.make("weight", DType::f32, 1, kCount);
    const Stream* lane = &second;
    const auto bytes = static_cast<size_t>(kCount) * sizeof(float);
    t.record("gather", {from}, {w},
             [=](const saturate::Run& r) { copy_on_device(*lane, r(w), r(from), bytes); }, {},
             {.kind = OperationKind::collective, .bytes = static_cast<int64_t>(bytes), .lane = 1});
    const Value y = i + 1 < kWeights ? t.make("sum", DType::f32, 1, kCount)
                                     : t.external("result", DType::f32, 1, kCount, result.data());
    t.record("add", x ? std::vector<Value>{x, w} : std::vector<Value>{w}, {y},
             [=](const saturate::Run& r) {
               kernels::add(
                   r.ctx,
                   {.a = r(x ? x : w), .b = r(w), .y = r(y), .count = kCount, .dtype = DType::f32});
             });
    x = y;
  }
  const Buffer arena(gpu, t.plan());
  ASSERT_EQ(flaw_of(t, t.layout()), "");
  const Context ctx{gpu, first.native()};
  const Lane lanes[] = {{&first, ctx}, {&second, {gpu, second.native()}}};
  const auto enqueue = [&] {
    for (const char* segment : {"forward", "second"}) {
      t.run(ctx, arena.data(), {.range = t.range(segment), .lanes = lanes});
    }
  };
  const auto expect_sum = [&] {
    std::vector<float> got(kCount);
    copy_to_host(first, got.data(), result.data(), result.bytes());
    first.synchronize();
    for (int64_t i = 0; i < kCount; i += 4099) ASSERT_EQ(got[static_cast<size_t>(i)], 79.0f) << i;
    fill_bytes(first, result.data(), 0xFF, result.bytes());
    fill_bytes(first, arena.data(), 0xFF, arena.bytes());
  };
  for (int i = 0; i < 3; ++i) {
    enqueue();
    expect_sum();
  }
  const Graph graph = Graph::capture(first, enqueue);
  for (int i = 0; i < 3; ++i) {
    graph.launch(first);
    expect_sum();
  }
}

}  // namespace
}  // namespace saturate
