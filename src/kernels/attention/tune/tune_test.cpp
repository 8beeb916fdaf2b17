// SPDX-License-Identifier: Apache-2.0
#include "kernels/attention/tune/tune.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "kernels/attention/hopper/backward.h"
#include "kernels/testing/attention_expect.h"
#include "kernels/testing/guarded.h"

namespace saturate::kernels {
namespace {

using saturate::testing::TestContext;

AttentionKey key(AttentionPass pass, int64_t sequences, int64_t length, int64_t longest) {
  return {.pass = pass,
          .dtype = DType::bf16,
          .head_size = 64,
          .v_head_size = 64,
          .heads = 4,
          .kv_heads = 2,
          .sequences = sequences,
          .queries = length,
          .keys = length,
          .longest = longest,
          .causal = true};
}

const Device kGpu{DeviceKind::cuda, 0};

TEST(TuneAttention, RefusesWhatItCannotMeasure) {
  const Stream stream(Device{});
  const auto code = [&](AttentionKey k) {
    try {
      tune_attention(Context{}, stream, k);
    } catch (const Error& e) {
      return e.code();
    }
    return Errc::internal;
  };
  AttentionKey k = key(AttentionPass::forward, 3, 10, 10);
  k.features = 4;
  EXPECT_EQ(code(k), Errc::unsupported);
  EXPECT_EQ(code(key(AttentionPass::forward, 3, 10, 31)), Errc::invalid_argument);
  EXPECT_EQ(code(key(AttentionPass::forward, 3, 10, 9)), Errc::invalid_argument);
}

TEST(TuneAttention, MeasuresEveryKernelThatFits) {
  if (capability_of(Device{DeviceKind::cuda, 0}).major < 8)
    GTEST_SKIP() << "no GPU of compute capability 8.0";
  const TestContext t(kGpu);
  const Context ctx = t.get();
  for (const AttentionPass pass : {AttentionPass::forward, AttentionPass::backward}) {
    const AttentionTuneResult r = tune_attention(ctx, t.stream, key(pass, 20, 50, 110));
    EXPECT_GE(r.rows.size(), 3u);  // mma, features, plain; Hopper's, or that of short sequences
    for (size_t i = 1; i < r.rows.size(); ++i) EXPECT_LE(r.rows[i - 1].ms, r.rows[i].ms);
    for (const AttentionTuneRefusal& refusal : r.refused)
      EXPECT_EQ(refusal.reason.find("results"), std::string::npos)
          << refusal.impl << ": " << refusal.reason;
    EXPECT_TRUE(std::any_of(r.rows.begin(), r.rows.end(),
                            [&](const auto& row) { return row.impl == r.choice.impl; }));
    EXPECT_GT(r.choice.ms, 0);
    EXPECT_LE(r.choice.ms, r.choice.default_ms);
  }
}

// Whatever a table names, results are right, are those of that kernel, and are the same under
// capture, where nothing may be measured.
TEST(TuneAttention, EveryChoiceIsRightAlsoInAGraph) {
  if (capability_of(Device{DeviceKind::cuda, 0}).major < 8)
    GTEST_SKIP() << "no GPU of compute capability 8.0";
  const Context ctx{kGpu, nullptr, nullptr, 0};
  const Shape shape{"", {70, 128, 3}, {70, 128, 3}, 4, 2, 64, true, 0.0f, true, 1, 1};
  const Problem p(shape, DType::bf16);
  AttentionBackwardArgs any = p.with_any_pointers();
  any.workspace = any.delta, any.workspace_bytes = attention_backward_hopper_workspace(any.forward);
  static AttentionTable table;  // of one choice; for the lambda below
  // Planned, captured and replayed.
  static constexpr Impl<AttentionArgs> kForward{
      "captured", DeviceKind::cuda, nullptr, [](const Context& c, const AttentionArgs& a) {
        const Stream stream(c.device);
        const Context inside{c.device, stream.native(), nullptr, 0};
        const auto plan = plan_attention(inside, a, &table);
        attention_forward(inside, plan, a);  // loads the kernel
        stream.synchronize();
        Graph::capture(stream, [&] { attention_forward(inside, plan, a); }).launch(stream);
        stream.synchronize();
      }};
  int tried = 0;
  for (const Impl<AttentionArgs>& impl : attention_forward_impls()) {
    if (impl.device != kGpu.kind || !impl.fits(ctx, any.forward)) continue;
    SCOPED_TRACE(impl.name);
    table = {};
    table.set(attention_key(any.forward, AttentionPass::forward), {impl.name, 1, 1});
    const Result direct = run(p, kGpu, &impl, nullptr),
                 tuned = run(p, kGpu, nullptr, nullptr, &table),
                 captured = run(p, kGpu, &kForward, nullptr);
    expect_right(p, tuned);
    EXPECT_TRUE(same_bits(direct.o, tuned.o));
    EXPECT_TRUE(same_bits(direct.o, captured.o));
    ++tried;
  }
  EXPECT_GE(tried, 3);
  for (const Impl<AttentionBackwardArgs>& impl : attention_backward_impls()) {
    if (impl.device != kGpu.kind || !impl.fits(ctx, any)) continue;
    SCOPED_TRACE(impl.name);
    table = {};
    table.set(attention_key(any.forward, AttentionPass::backward), {impl.name, 1, 1});
    const Result direct = run(p, kGpu, nullptr, &impl),
                 tuned = run(p, kGpu, nullptr, nullptr, &table);
    expect_right(p, tuned);
    EXPECT_TRUE(same_bits(direct.d_input, tuned.d_input));
    // Memory is asked for only where the choice takes it.
    any.workspace_bytes = kAnyWorkspace;
    EXPECT_EQ(plan_attention(ctx, any, &table).workspace_bytes > 0,
              std::string(impl.name) == "attention_backward_hopper_cuda");
  }
}

}  // namespace
}  // namespace saturate::kernels
