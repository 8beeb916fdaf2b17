// SPDX-License-Identifier: Apache-2.0
#include "kernels/attention/tune/table.h"

#include <gtest/gtest.h>

#include "base/testing/temp_folder.h"
#include "kernels/attention/features.h"
#include "kernels/testing/attention_problem.h"

namespace saturate::kernels {
namespace {

using saturate::testing::TempFolder;
using saturate::testing::write_file;

const TuneMachine kHere{"NVIDIA H200", "9.0", "580.159.04", "cuBLASLt 13.0.2"};

AttentionKey key(int64_t sequences, int64_t heads, int64_t length, int64_t head_size = 64) {
  return {.pass = AttentionPass::backward,
          .dtype = DType::bf16,
          .head_size = head_size,
          .v_head_size = head_size,
          .heads = heads,
          .kv_heads = heads,
          .sequences = sequences,
          .queries = length,
          .keys = length,
          .longest = length};
}

AttentionTable table_of(std::initializer_list<std::pair<AttentionKey, AttentionChoice>> entries) {
  AttentionTable t;
  for (const auto& [k, c] : entries) t.set(k, c);
  return t;
}

TEST(AttentionTable, FindsTheShapeItselfThenItsClassThenNothing) {
  const AttentionTable t =
      table_of({{key(32, 12, 1024), {"a", 1, 1}}, {key(34, 12, 1024), {"b", 1, 1}}});
  EXPECT_EQ(t.find(key(32, 12, 1024))->impl, "a");
  EXPECT_EQ(t.find(key(34, 12, 1024))->impl, "b");
  EXPECT_EQ(t.find(key(12, 32, 1000))->impl, "b") << "the most work of the class, heads and all";
  EXPECT_EQ(t.find(key(32, 12, 2048)), nullptr);
  EXPECT_EQ(t.find(key(32, 12, 1024, 128)), nullptr);
  for (auto change :
       {+[](AttentionKey& k) { k.pass = AttentionPass::forward; },
        +[](AttentionKey& k) { k.dtype = DType::f16; }, +[](AttentionKey& k) { k.causal = true; },
        +[](AttentionKey& k) { k.dropout = true; }, +[](AttentionKey& k) { k.features = 1; },
        +[](AttentionKey& k) { k.kv_heads = 4; }, +[](AttentionKey& k) { k.keys = 4096; }}) {
    AttentionKey other = key(32, 12, 1024);
    change(other);
    EXPECT_EQ(t.find(other), nullptr) << text_of(other);
  }
}

TEST(AttentionTable, TheLongestSequenceDecidesOnlyWhereItWasMeasured) {
  const auto up_to = [](int64_t longest) {
    AttentionKey k = key(200, 8, 80);
    k.longest = longest;
    return k;
  };
  AttentionTable t = table_of({{up_to(80), {"short", 1, 1}}});
  EXPECT_EQ(t.find(up_to(300))->impl, "short");
  t.set(up_to(290), {"long", 1, 1});
  EXPECT_EQ(t.find(up_to(300))->impl, "long");
  EXPECT_EQ(t.find(up_to(82))->impl, "short");
  EXPECT_EQ(t.find(up_to(2000))->impl, "short") << "the first of equal work";
}

TEST(AttentionTable, DoesNotDependOnTheOrderOfItsEntries) {
  const std::pair<AttentionKey, AttentionChoice> x{key(8, 8, 64), {"x", 1, 1}},
      y{key(8, 8, 66), {"y", 1, 1}};
  EXPECT_EQ(table_of({x, y}).find(key(8, 8, 65))->impl, "y");
  EXPECT_EQ(table_of({y, x}).find(key(8, 8, 65))->impl, "y");
}

TEST(AttentionTable, KeyIsWhatTheArgumentsSay) {
  Shape shape{"", {5, 9, 1}, {7, 7, 40}, 4, 2, 64, true, 0.1f};
  shape.features.soft_cap = 20.0f;
  const AttentionKey k =
      attention_key(Problem(shape, DType::f16).args.forward, AttentionPass::forward);
  EXPECT_EQ(k.sequences, 3);
  EXPECT_EQ(k.queries, 5);
  EXPECT_EQ(k.keys, 18);
  EXPECT_EQ(k.longest, 40);
  EXPECT_EQ(k.features, uint32_t{kFeatureSoftCap});
  EXPECT_TRUE(k.causal && k.dropout);
  EXPECT_EQ(text_of(k),
            "f16 forward 3x4x5x64 2 key heads 18 keys up to 40 causal dropout features 4");
}

TEST(AttentionTableFile, ReadsBackWhatWasWrittenAndKeepsEarlierEntries) {
  const TempFolder folder;
  const std::string path = folder / "deep/attention.json";
  AttentionKey odd = key(3, 8, 17, 96);
  odd.pass = AttentionPass::forward, odd.kv_heads = 2, odd.keys = 5, odd.features = 9;
  odd.causal = odd.dropout = true;
  merge_attention_table(path, kHere, table_of({{odd, {"b", 3, 4}}, {key(1, 2, 3), {"c", 1, 1}}}));
  merge_attention_table(path, kHere, table_of({{key(1, 2, 3), {"a", 0.5, 2.75}}}));
  const ReadAttentionTable r = read_attention_table(path, kHere);
  EXPECT_EQ(r.problem, "");
  EXPECT_EQ(r.table.entries(),
            table_of({{odd, {"b", 3, 4}}, {key(1, 2, 3), {"a", 0.5, 2.75}}}).entries());
  EXPECT_EQ(attention_table_path("/c", kHere), "/c/attention-nvidia-h200-9.0.json");
}

TEST(AttentionTableFile, BrokenFilesAreOneProblemThatNamesTheRemedy) {
  const TempFolder folder;
  const std::string path = folder / "attention.json";
  const std::string whole = to_json(kHere, table_of({{key(8, 16, 32), {"a", 1, 1}}}));
  const std::tuple<const char*, const char*, const char*> edits[] = {
      {"\"backward\"", "\"sideways\"", "pass is \"sideways\": it must be one of forward, backward"},
      {"\"bf16\"", "\"bf17\"", "type is \"bf17\": a type"},
      {"[16,16]", "[16,0]", "heads is [16,0]: two whole numbers from 1"},
      {"[32,32,32]", "[32,32]", "lengths is [32,32]: three whole numbers from 0"},
      {"\"causal\":false", "\"causal\":0", "causal is 0: true or false"},
      {"\"impl\":\"a\"", "\"impl\":null", "impl is null: a text"},
      {"580.159.04", "580.1", "it was measured with driver 580.1, now 580.159.04"},
      {"saturate attention table 1", "saturate gemm table 1", "its \"format\" is not"},
  };
  for (const auto& [from, to, expected] : edits) {
    std::string text = whole;
    ASSERT_NE(text.find(from), std::string::npos) << from << " in " << whole;
    text.replace(text.find(from), std::string_view(from).size(), to);
    write_file(path, text);
    const ReadAttentionTable r = read_attention_table(path, kHere);
    EXPECT_TRUE(r.table.empty());
    EXPECT_NE(r.problem.find(expected), std::string::npos) << r.problem;
    EXPECT_NE(r.problem.find("run `saturate tune attention` again"), std::string::npos);
  }
}

#if SATURATE_WITH_CUDA
TEST(AttentionTable, DecidesWhatIsPlannedWhereThatFits) {
  const Capability hopper{
      .major = 9, .multiprocessors = 132, .shared_bytes = 232448, .tensor_maps = true};
  const Context ctx{{DeviceKind::cuda, 0}, nullptr, nullptr, 0, &hopper};
  const Problem p({"", {64, 64}, {64, 64}, 2, 2, 64}, DType::bf16);
  const AttentionArgs& args = p.args.forward;
  const AttentionKey k = attention_key(args, AttentionPass::forward);
  const auto chosen = [&](const AttentionKey& key, const char* name) {
    const AttentionTable table = table_of({{key, {name, 1, 1}}});
    return std::string(plan_attention(ctx, args, &table).impl->name);
  };
  const std::string first = "attention_forward_mma_cuda";  // Hopper's does not pay
  EXPECT_EQ(plan_attention(ctx, args).impl->name, first);
  EXPECT_EQ(plan_attention(ctx, args).refused.size(), 2u);
  EXPECT_EQ(chosen(k, "attention_forward_features_cuda"), "attention_forward_features_cuda");
  EXPECT_EQ(chosen(k, "attention_forward_hopper_cuda"), "attention_forward_hopper_cuda")
      << "it fits, though it is not expected to pay";
  EXPECT_EQ(chosen(k, "attention_forward_wide_cuda"), first) << "refuses, so the list decides";
  EXPECT_EQ(chosen(k, "attention_forward_cpu"), first) << "of another kind of device";
  EXPECT_EQ(chosen(k, "no such thing"), first);
  AttentionKey backward = k;
  backward.pass = AttentionPass::backward;
  EXPECT_EQ(chosen(backward, "attention_forward_features_cuda"), first) << "measured backward only";
}
#endif

}  // namespace
}  // namespace saturate::kernels
