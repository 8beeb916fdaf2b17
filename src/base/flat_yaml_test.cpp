// SPDX-License-Identifier: Apache-2.0
#include "base/flat_yaml.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace saturate {
namespace {

std::string refusal(const std::string& text) {
  try {
    parse_flat_yaml(text, "file");
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), Errc::invalid_argument);
    return e.what();
  }
  return "none";
}

TEST(FlatYaml, ReadsMarianConfigurations) {
  const auto all = parse_flat_yaml(
      "# generated\nbert-mask-symbol: \"[MASK]\"\ndim-vocabs:\n  - 65001\n  - 65001\n"
      "transformer-tied-layers:\n  []\nmodels: [a.npz, \"b, c.npz\"]\r\ntransformer-preprocess: "
      "\"\"\n"
      "version: v1.7.6 02f4af4e 2018-12-12 18:51:10 -0800  # of Marian\nnothing:\n",
      "file");
  ASSERT_EQ(all.size(), 7u);
  EXPECT_EQ(find_entry(all, "bert-mask-symbol")->values, std::vector<std::string>{"[MASK]"});
  EXPECT_EQ(find_entry(all, "dim-vocabs")->values, (std::vector<std::string>{"65001", "65001"}));
  EXPECT_TRUE(find_entry(all, "transformer-tied-layers")->values.empty());
  EXPECT_EQ(find_entry(all, "models")->values, (std::vector<std::string>{"a.npz", "b, c.npz"}));
  EXPECT_EQ(find_entry(all, "transformer-preprocess")->values, std::vector<std::string>{""});
  EXPECT_EQ(find_entry(all, "version")->values[0], "v1.7.6 02f4af4e 2018-12-12 18:51:10 -0800");
  EXPECT_EQ(find_entry(all, "other"), nullptr);
}

TEST(FlatYaml, ReadsPiecesOfVocabularies) {
  const auto all = parse_flat_yaml(
      "</s>: 0\n\"<unk>\": 1\n'it''s': 2\n\"\\\"\": 3\n\"\\x85\": 4\n\"\\u2581\": 5\na:b: 6\n"
      "? \"long key\"\n: 7\n\"\\U0001F600\\\\\": 8\n[MASK]: 9\n\u2581\u00e9: 10\n---: 11\n",
      "file");
  const std::vector<std::string> wanted = {"</s>",         "<unk>",  "it's",         "\"",
                                           "\u0085",       "\u2581", "a:b",          "long key",
                                           "\U0001F600\\", "[MASK]", "\u2581\u00e9", "---"};
  ASSERT_EQ(all.size(), wanted.size());
  for (size_t i = 0; i < wanted.size(); ++i) {
    EXPECT_EQ(all[i].key, wanted[i]);
    EXPECT_EQ(all[i].values, std::vector<std::string>{std::to_string(i)});
  }
}

TEST(FlatYaml, RefusesOtherYaml) {
  EXPECT_NE(refusal("a:\n  b: 1\n").find("line 2: it is indented"), std::string::npos);
  EXPECT_NE(refusal("a: &x 1\n").find("begins with &"), std::string::npos);
  EXPECT_NE(refusal("a: |\n  text\n").find("begins with |"), std::string::npos);
  EXPECT_NE(refusal("a: [1, 2\n").find("no ]"), std::string::npos);
  EXPECT_NE(refusal("\"a: 1\n").find("no end"), std::string::npos);
  EXPECT_NE(refusal("\"\\xZZ\": 1\n").find("no escape"), std::string::npos);
  EXPECT_NE(refusal("\"\\ud800\": 1\n").find("no escape"), std::string::npos);
  EXPECT_NE(refusal("just words\n").find("a colon"), std::string::npos);
  EXPECT_NE(refusal("? a\nb: 1\n").find("line 2"), std::string::npos);
  EXPECT_NE(refusal("? a\n").find("no value"), std::string::npos);
  EXPECT_TRUE(parse_flat_yaml("", "file").empty());
}

}  // namespace
}  // namespace saturate
