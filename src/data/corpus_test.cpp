// SPDX-License-Identifier: Apache-2.0
#include "data/corpus.h"

#include <gtest/gtest.h>

#include "data/testing/sample_corpus.h"

namespace saturate::data {
namespace {

std::string read_all(const CorpusSpec& spec) {
  std::string all;
  const auto corpus = open_corpus(spec);
  SentencePair pair;
  while (corpus->next(pair))
    all += pair.source + ">" + pair.target + (pair.ends_document ? "|" : "&");
  return all;
}

CorpusSpec spec_of(CorpusFormat format, std::vector<std::string> paths) {
  CorpusSpec spec;
  spec.format = format;
  spec.paths = std::move(paths);
  return spec;
}

TEST(Corpus, ReadsEveryFormat) {
  const SampleFolder dir;
  const auto en = dir.write("a.en", "a b\nc\n"), de = dir.write("a.de", "A B\nC\n");
  EXPECT_EQ(read_all(spec_of(CorpusFormat::parallel, {en, de})), "a b>A B|c>C|");
  const auto tsv = dir.write("a.tsv", "a\tA\n\tB\n");
  EXPECT_EQ(read_all(spec_of(CorpusFormat::tsv, {tsv, tsv})), "a>A|>B|a>A|>B|");
  EXPECT_EQ(read_all(spec_of(CorpusFormat::lines, {en, de})), ">a b|>c|>A B|>C|");
  EXPECT_EQ(read_all(spec_of(CorpusFormat::stream, {en, de})), ">a b\n&>c\n|>A B\n&>C\n|");

  const auto json = dir.write("a.jsonl", "{\"source\":\"a\",\"target\":\"\\u00c4\"}\n");
  EXPECT_EQ(read_all(spec_of(CorpusFormat::jsonl, {json})), "a>\xC3\x84|");
  auto inner =
      spec_of(CorpusFormat::jsonl,
              {dir.write("b.jsonl", "{\"translation\": {\"en\": \"x\", \"de\": \"y\"}}\n")});
  inner.source_key = "en";
  inner.target_key = "de";
  EXPECT_EQ(read_all(inner), "x>y|");
  auto text = spec_of(CorpusFormat::jsonl, {dir.write("c.jsonl", "{\"text\": \"one\\ntwo\"}")});
  text.source_key.clear();
  EXPECT_EQ(read_all(text), ">one\ntwo|");
}

TEST(Corpus, LeavesOutBadLinesWhenAskedAndKeepsPairsTogether) {
  const SampleFolder dir;
  const auto en = dir.write("s.en", "a\nb\xFF\nc\nd\ne\xFF\nf\n");
  const auto de = dir.write("s.de", std::string("A\nB\nC\0\nD\nE\xFF\nF\n", 14));
  const auto skipping = [](CorpusSpec spec) {
    EXPECT_NE(error_of([&] { read_all(spec); }), "");  // strict is the default
    spec.skip_bad_lines = true;
    return spec;
  };
  const CorpusSpec pairs = skipping(spec_of(CorpusFormat::parallel, {en, de}));
  EXPECT_EQ(read_all(pairs), "a>A|d>D|f>F|");
  const auto corpus = open_corpus(pairs);
  for (SentencePair pair; corpus->next(pair);) continue;
  EXPECT_EQ(corpus->bad_lines().count, 3);
  ASSERT_EQ(corpus->bad_lines().first.size(), 3u);
  EXPECT_NE(corpus->bad_lines().first[0].find("s.en:2: byte 2"), std::string::npos);
  EXPECT_NE(corpus->bad_lines().first[1].find("s.de:3: the line has a NUL"), std::string::npos);

  const auto tsv = dir.write("s.tsv", "a\tA\nb\nc\tC\tx\nd\tD\n");
  EXPECT_EQ(read_all(skipping(spec_of(CorpusFormat::tsv, {tsv}))), "a>A|d>D|");
  const auto json = dir.write("s.jsonl", "{}\n{\"source\":\"a\",\"target\":\"b\"}\n{\"sour");
  EXPECT_EQ(read_all(skipping(spec_of(CorpusFormat::jsonl, {json}))), "a>b|");
  EXPECT_EQ(read_all(skipping(spec_of(CorpusFormat::lines, {en}))), ">a|>c|>d|>f|");
  const auto last = dir.write("last", "\xFF\nx\n\xFF\ny\n\xFF\n");
  EXPECT_EQ(read_all(skipping(spec_of(CorpusFormat::stream, {last, last}))),
            ">x\n&>y\n|>x\n&>y\n|");

  // Files of different length stay an error, with the lines counted to their ends.
  auto uneven = spec_of(CorpusFormat::parallel, {en, last});
  uneven.skip_bad_lines = true;
  EXPECT_NE(error_of([&] { read_all(uneven); }).find("6 lines"), std::string::npos);
}

TEST(Corpus, NamesBothCountsWhenFilesDiffer) {
  const SampleFolder dir;
  const auto a = dir.write("a", "1\n2\n3\n"), b = dir.write("b", "1\n2\n3\n4\n5");
  EXPECT_NE(error_of([&] {
              read_all(spec_of(CorpusFormat::parallel, {a, b}));
            }).find("a has 3 lines and " + b + " has 5"),
            std::string::npos);
  EXPECT_NE(error_of([&] {
              read_all(spec_of(CorpusFormat::parallel, {b, a}));
            }).find("b has 5 lines and " + a + " has 3"),
            std::string::npos);
}

TEST(Corpus, NamesLineOfWrongFields) {
  const SampleFolder dir;
  const auto message = [&](CorpusFormat format, const std::string& bytes) {
    const auto path = dir.write("in", bytes);
    return error_of([&] { read_all(spec_of(format, {path})); });
  };
  EXPECT_NE(message(CorpusFormat::tsv, "a\tb\nc\n").find("in:2: the line has 1 field;"),
            std::string::npos);
  EXPECT_NE(message(CorpusFormat::tsv, "a\tb\tc\n").find("in:1: the line has 3 fields;"),
            std::string::npos);
  EXPECT_NE(message(CorpusFormat::jsonl, "{\"source\": \"a\"")
                .find("in:1: the line is not a JSON object"),
            std::string::npos);
  EXPECT_NE(message(CorpusFormat::jsonl, "[1]").find("not a JSON object"), std::string::npos);
  EXPECT_NE(message(CorpusFormat::jsonl, "{\"source\": 1}").find("no string under \"source\""),
            std::string::npos);
  EXPECT_NE(
      message(CorpusFormat::jsonl, "{\"source\": \"a\\u0000\", \"target\": \"\"}").find("NUL"),
      std::string::npos);
  EXPECT_NE(message(CorpusFormat::jsonl, std::string(500000, '[')).find("not a JSON object"),
            std::string::npos);
  EXPECT_NE(
      error_of([&] { open_corpus(spec_of(CorpusFormat::parallel, {"x"})); }).find("needs two"),
      std::string::npos);
  EXPECT_NE(error_of([&] {
              open_corpus(spec_of(CorpusFormat::lines, {"-", "-"}));
            }).find("one file only"),
            std::string::npos);
}

TEST(Corpus, GuessesTheFormatFromNames) {
  EXPECT_EQ(guess_format({"a.en", "a.de"}), CorpusFormat::parallel);
  EXPECT_EQ(guess_format({"a.tsv.gz"}), CorpusFormat::tsv);
  EXPECT_EQ(guess_format({"a.jsonl.zst"}), CorpusFormat::jsonl);
  EXPECT_EQ(guess_format({"-"}), CorpusFormat::lines);
}

}  // namespace
}  // namespace saturate::data
