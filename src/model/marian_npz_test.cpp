// SPDX-License-Identifier: Apache-2.0
// Files in Marian's form, each value of which says where it must go. Whole models that transformers
// computed are in tests/checkpoints.
#include "model/marian_npz.h"

#include <gtest/gtest.h>

#include <map>

#include "base/error.h"
#include "base/testing/temp_folder.h"
#include "model/hf_config.h"
#include "model/npz_bytes_test.h"

namespace saturate::model {
namespace {

constexpr int64_t kWidth = 4, kFfn = 6, kVocab = 5;

struct File {
  std::vector<NpyEntry> entries;
  float next = 0;

  void add(const std::string& name, int64_t rows, int64_t cols) {
    std::vector<float> values;
    for (int64_t i = 0; i < rows * cols; ++i) values.push_back(next++);
    entries.push_back({name, "<f4", "(" + std::to_string(rows) + ", " + std::to_string(cols) + ")",
                       float_bytes(values)});
  }
  void add_attention(const std::string& prefix, const std::string& norm) {
    for (const char* part : {"q", "k", "v", "o"}) {
      add(prefix + "_W" + part, kWidth, kWidth);
      add(prefix + "_b" + part, 1, kWidth);
    }
    add(prefix + "_Wo_ln_scale" + norm, 1, kWidth);
    add(prefix + "_Wo_ln_bias" + norm, 1, kWidth);
  }
  void add_layer(const std::string& prefix, bool decoder, const std::string& norm) {
    add_attention(prefix + "_self", norm);
    if (decoder) add_attention(prefix + "_context", norm);
    add(prefix + "_ffn_W1", kWidth, kFfn);
    add(prefix + "_ffn_b1", 1, kFfn);
    add(prefix + "_ffn_W2", kFfn, kWidth);
    add(prefix + "_ffn_b2", 1, kWidth);
    add(prefix + "_ffn_ffn_ln_scale" + norm, 1, kWidth);
    add(prefix + "_ffn_ffn_ln_bias" + norm, 1, kWidth);
  }
  const NpyEntry& operator[](const std::string& name) const {
    return *std::ranges::find(entries, name, &NpyEntry::name);
  }
  float value(const std::string& name, size_t at) const {
    float v = 0;
    std::memcpy(&v, (*this)[name].data.data() + at * sizeof v, sizeof v);
    return v;
  }
};

const std::string kOptions =
    "type: transformer\ndim-emb: 4\nenc-depth: 1\ndec-depth: 2\ntransformer-heads: 2\n"
    "transformer-dim-ffn: 6\ntransformer-ffn-activation: swish\ntransformer-postprocess-emb: d\n"
    "transformer-tied-layers:\n  []\ndim-vocabs:\n  - 5\n  - 5\n";
const std::string kPost =
    "tied-embeddings-all: true\ntransformer-preprocess: \"\"\ntransformer-postprocess: dan\n"
    "transformer-postprocess-top: \"\"\n";
const std::string kPre =
    "tied-embeddings-all: false\ntransformer-preprocess: n\ntransformer-postprocess: da\n"
    "transformer-postprocess-top: n\n";

File marian_file(bool pre) {
  File f;
  const std::string norm = pre ? "_pre" : "";
  f.add_layer("encoder_l1", false, norm);
  for (const char* layer : {"decoder_l1", "decoder_l2"}) f.add_layer(layer, true, norm);
  if (pre) {
    for (const char* side : {"encoder", "decoder"}) {
      f.add(side + std::string("_Wemb"), kVocab, kWidth);
      f.add(side + std::string("_top_ln_scale"), 1, kWidth);
      f.add(side + std::string("_top_ln_bias"), 1, kWidth);
    }
    f.add("decoder_ff_logit_out_W", kWidth, kVocab);
  } else {
    f.add("Wemb", kVocab, kWidth);
  }
  f.add("decoder_ff_logit_out_b", 1, kVocab);
  const std::string options = kOptions + (pre ? kPre : kPost) + std::string(1, '\0');
  f.entries.push_back(
      {"special:model.yml", "|i1", "(" + std::to_string(options.size()) + ",)", options});
  return f;
}

using Values = std::map<std::string, std::vector<float>>;

Values load(const std::string& folder) {
  Values values;
  const ModelConfig config = read_model_config(folder);
  load_hf_weights(folder, config, [&values](const std::string& name, std::span<const float> v) {
    values[name].assign(v.begin(), v.end());
  });
  EXPECT_EQ(values.size(), model_parameters(config).size());
  return values;
}

TEST(MarianNpz, ValuesGoWhereMarianHasThem) {
  const testing::TempFolder folder;
  const File f = marian_file(false);
  testing::write_file(folder / "model.npz", npz_bytes(f.entries));
  const ModelConfig c = read_model_config(folder.path());
  EXPECT_EQ(c.vocab_target, kVocab + 1);
  EXPECT_EQ(c.pad_id, kVocab);
  EXPECT_EQ(c.decoder_start_id, kVocab);
  EXPECT_EQ(c.sinusoid_spacing, SinusoidSpacing::tensor2tensor);
  EXPECT_EQ(c.norm_eps, 1e-6f);
  const Values v = load(folder.path());
  // Ours are (out, in): row 2, column 1 of v lies in row 1, column 2 there.
  EXPECT_EQ(v.at("decoder.layers.1.cross.kv.weight")[(kWidth + 2) * kWidth + 1],
            f.value("decoder_l2_context_Wv", 1 * kWidth + 2));
  EXPECT_EQ(v.at("encoder.layers.0.self.qkv.bias")[kWidth + 3], f.value("encoder_l1_self_bk", 3));
  EXPECT_EQ(v.at("encoder.layers.0.ffn.in.weight")[5 * kWidth + 3],
            f.value("encoder_l1_ffn_W1", 3 * kFfn + 5));
  EXPECT_EQ(v.at("decoder.layers.0.ffn_norm.bias")[1], f.value("decoder_l1_ffn_ffn_ln_bias", 1));
  EXPECT_EQ(v.at("decoder.layers.0.cross_norm.weight")[1],
            f.value("decoder_l1_context_Wo_ln_scale", 1));
  // The table, and the row that Marian lacks.
  const std::vector<float>& table = v.at("shared.weight");
  ASSERT_EQ(table.size(), static_cast<size_t>((kVocab + 1) * kWidth));
  EXPECT_EQ(table[7], f.value("Wemb", 7));
  EXPECT_EQ(std::vector<float>(table.end() - kWidth, table.end()),
            std::vector<float>(kWidth, 0.0f));
  EXPECT_EQ(v.at("output.bias")[4], f.value("decoder_ff_logit_out_b", 4));
  EXPECT_LT(v.at("output.bias")[kVocab], -1000);
}

TEST(MarianNpz, NormsBeforeAndOutputOfItsOwn) {
  const testing::TempFolder folder;
  const File f = marian_file(true);
  testing::write_file(folder / "model.npz", npz_bytes(f.entries, true));
  const ModelConfig c = read_model_config(folder.path());
  EXPECT_EQ(c.norm_position, NormPosition::pre);
  EXPECT_FALSE(c.tied_output);
  const Values v = load(folder.path());
  EXPECT_EQ(v.at("encoder.layers.0.self_norm.weight")[2],
            f.value("encoder_l1_self_Wo_ln_scale_pre", 2));
  EXPECT_EQ(v.at("decoder.final_norm.bias")[2], f.value("decoder_top_ln_bias", 2));
  EXPECT_EQ(v.at("decoder.embed.weight")[6], f.value("decoder_Wemb", 6));
  EXPECT_EQ(v.at("output.weight")[3 * kWidth + 1],
            f.value("decoder_ff_logit_out_W", 1 * kVocab + 3));
}

std::string refusal(const std::string& from, const std::string& to) {
  const testing::TempFolder folder;
  File f = marian_file(false);
  std::string& options = f.entries.back().data;
  const size_t at = options.find(from);
  options.replace(at, from.size(), to);
  f.entries.back().shape = "(" + std::to_string(options.size()) + ",)";
  testing::write_file(folder / "model.npz", npz_bytes(f.entries));
  try {
    load(folder.path());
  } catch (const Error& e) {
    return e.what();
  }
  return "none";
}

TEST(MarianNpz, RefusesWhatIsNotComputedHere) {
  EXPECT_NE(refusal("type: transformer", "type: s2s").find("type is \"s2s\""), std::string::npos);
  EXPECT_NE(refusal("activation: swish", "activation: gelu").find("is \"gelu\""),
            std::string::npos);
  EXPECT_NE(
      refusal("dec-depth: 2", "dec-depth: 2\ntransformer-decoder-autoreg: rnn").find("autoreg"),
      std::string::npos);
  EXPECT_NE(refusal("  []", "  - 1\n  - 1").find("tied-layers is \"1, 1\""), std::string::npos);
  EXPECT_NE(refusal("heads: 2", "heads: 3").find("3 heads do not divide width 4"),
            std::string::npos);
  EXPECT_NE(refusal("heads: 2", "heads: two").find("a number is needed"), std::string::npos);
  EXPECT_NE(refusal("dec-depth: 2", "dec-depth: 3").find("decoder_l3_self_Wq"), std::string::npos);
  EXPECT_NE(refusal("dec-depth: 2", "dec-depth: 1").find("has no place"), std::string::npos);
  EXPECT_NE(refusal("all: true", "all: false").find("no matrix \"encoder_Wemb\""),
            std::string::npos);
}

TEST(MarianNpz, FindsItsFiles) {
  const testing::TempFolder folder;
  EXPECT_FALSE(is_marian_folder(folder.path()));
  for (const char* name : {"a.npz", "b.npz", "a.npz.optimizer.npz", "opus.vocab.yml"})
    testing::write_file(folder / name, "</s>: 0\n\"<unk>\": 1\n\"x\": 3\n");
  EXPECT_TRUE(is_marian_folder(folder.path()));
  EXPECT_THROW(marian_files(folder.path()), Error);
  testing::write_file(
      folder / "decoder.yml",
      "models:\n  - /elsewhere/b.npz\nvocabs:\n  - opus.vocab.yml\n  - opus.vocab.yml\n");
  EXPECT_EQ(marian_files(folder.path()).weights, folder / "b.npz");
  EXPECT_EQ(marian_files(folder.path()).vocabularies.size(), 2u);
  EXPECT_EQ(read_marian_vocabulary(folder / "opus.vocab.yml"),
            (std::vector<std::string>{"</s>", "<unk>", "", "x"}));
  testing::write_file(folder / "two.yml", "a: 0\nb: 0\n");
  EXPECT_THROW(read_marian_vocabulary(folder / "two.yml"), Error);
  testing::write_file(folder / "far.yml", "a: 16000000\n");
  EXPECT_THROW(read_marian_vocabulary(folder / "far.yml"), Error);
  testing::write_file(folder / "config.json", "{}");
  EXPECT_FALSE(is_marian_folder(folder.path()));
}

}  // namespace
}  // namespace saturate::model
