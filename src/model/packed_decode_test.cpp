// SPDX-License-Identifier: Apache-2.0
// Translation with packed weights: against weights that are not packed, and bit for bit whatever the
// batch, the plan and the instruction set.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <random>

#include "kernels/gemm/packed/packed_linear.h"
#include "model/decode_reference_test.h"
#include "model/model_folder.h"
#include "model/translator.h"

namespace saturate::model {
namespace {

using kernels::CpuLevel;
using kernels::PackedType;

ModelConfig small(bool gated) {
  ModelConfig c;
  c.d_model = 40;
  c.encoder_layers = c.decoder_layers = 2;
  c.heads = c.kv_heads = 2;
  c.head_size = 20;
  c.ffn = 52;
  c.gated = gated;
  c.activation = gated ? kernels::ActivationKind::silu : kernels::ActivationKind::gelu_erf;
  c.vocab_source = c.vocab_target = 57;
  c.max_positions = 40;
  c.pad_id = 3;
  c.eos_id = 2;
  c.decoder_start_id = 3;
  return c;
}

std::vector<std::vector<int32_t>> make_sources(size_t count) {
  std::mt19937 random(5);
  std::vector<std::vector<int32_t>> sources(count);
  for (auto& s : sources) {
    s.resize(2 + random() % 7);
    for (int32_t& id : s) id = static_cast<int32_t>(4 + random() % 53);
    s.back() = 2;
  }
  return sources;
}

TranslatorOptions options(int beam) {
  TranslatorOptions o;
  o.sentences = 8;
  o.source_rows = 48;
  o.max_source = 9;
  o.max_target = 14;
  o.beam = beam;
  return o;
}

void expect_equal(const std::vector<Hypothesis>& a, const std::vector<Hypothesis>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(a[i].ids, b[i].ids);
    EXPECT_EQ(a[i].log_probability, b[i].log_probability);  // bit for bit
  }
}

// One sentence alone has plans of as many rows as the beam, down to one.
TEST(PackedDecode, ASentenceHasTheSameBitsInEveryBatchAndOnEveryInstructionSet) {
  const auto sources = make_sources(11);
  for (const PackedType type : {PackedType::f32, PackedType::s8, PackedType::bf16}) {
    const int beam = type == PackedType::f32 ? 1 : 3;
    std::vector<std::vector<Hypothesis>> first;
    for (int level = 0; level <= static_cast<int>(kernels::cpu_level()); ++level) {
      if (type == PackedType::bf16 && level == static_cast<int>(CpuLevel::amx)) first.clear();
      TestModel m(small(beam == 3), DType::f32, {}, 4);
      kernels::KernelOptions newest;
      newest.cpu = static_cast<CpuLevel>(level);
      m.store.set_kernels(newest);
      m.store.pack(type);
      Translator translator(m.model, m.store, options(beam));
      const auto together = translator.search(sources);
      if (first.empty()) first = together;
      for (size_t i = 0; i < sources.size(); i += 2) {
        SCOPED_TRACE(::testing::Message() << "source " << i << " level " << level);
        expect_equal(together[i], first[i]);
        expect_equal(translator.search(std::span(&sources[i], 1))[0], together[i]);
      }
    }
  }
}

TEST(PackedDecode, PackedWeightsTranslateAsThoseThatAreNot) {
  const auto sources = make_sources(12);
  for (const bool gated : {false, true}) {
    TestModel plain(small(gated), DType::f32, {}, 4), packed(small(gated), DType::f32, {}, 4);
    packed.store.pack(PackedType::f32);
    Translator a(plain.model, plain.store, options(2)), b(packed.model, packed.store, options(2));
    const auto want = a.search(sources), got = b.search(sources);
    for (size_t i = 0; i < sources.size(); ++i) {
      EXPECT_EQ(got[i].front().ids, want[i].front().ids);
      EXPECT_NEAR(got[i].front().log_probability, want[i].front().log_probability, 1e-4);
    }
  }
}

// Matrices are packed as they are read, or from masters that were read before.
TEST(PackedDecode, AFolderReadIntoPanelsTranslatesAsOneReadIntoMasters) {
  const auto sources = make_sources(9);
  const std::string folder = ::testing::TempDir() + "saturate_packed_folder";
  std::filesystem::create_directories(folder);
  const ModelConfig config = small(false);
  TestModel written(config, DType::f32, {}, 4);
  save_model(folder, config, {}, written.store);
  // With `tables` lookups too come from panels: the masters of `panels` are another model's.
  const std::pair<PackedType, bool> cases[] = {{PackedType::f32, false},
                                               {PackedType::s8, false},
                                               {PackedType::s8, true},
                                               {PackedType::bf16, true}};
  for (const auto& [type, tables] : cases) {
    TestModel masters(config, DType::f32, {}, 5), panels(config, DType::f32, {}, 6);
    load_weights(folder, config, masters.store);
    masters.store.pack(type, tables);
    panels.store.pack(type, tables);
    load_weights(folder, config, panels.store);
    Translator a(masters.model, masters.store, options(2));
    Translator b(panels.model, panels.store, options(2));
    const auto want = a.search(sources), got = b.search(sources);
    for (size_t i = 0; i < sources.size(); ++i) expect_equal(got[i], want[i]);
  }
  std::filesystem::remove_all(folder);
}

// The model's weights are random and large, so that rounding shows; it must not take over.
TEST(PackedDecode, Int8StaysNear) {
  const auto sources = make_sources(12);
  TestModel plain(small(false), DType::f32, {}, 4), rounded(small(false), DType::f32, {}, 4);
  rounded.store.pack(PackedType::s8);
  Translator a(plain.model, plain.store, options(1)), b(rounded.model, rounded.store, options(1));
  const auto want = a.search(sources), got = b.search(sources);
  size_t same = 0, tokens = 0;
  for (size_t i = 0; i < sources.size(); ++i) {
    const auto &x = want[i].front().ids, &y = got[i].front().ids;
    for (size_t j = 0; j < x.size(); ++j) same += j < y.size() && x[j] == y[j] ? 1 : 0;
    tokens += x.size();
  }
  EXPECT_GT(tokens, 50u);
  EXPECT_GT(10 * same, 6 * tokens) << same << " of " << tokens;
}

}  // namespace
}  // namespace saturate::model
