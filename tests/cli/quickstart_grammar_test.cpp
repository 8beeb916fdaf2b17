// SPDX-License-Identifier: Apache-2.0
#include "apps/quickstart_grammar.h"

#include <gtest/gtest.h>

#include <set>

#include "base/error.h"

namespace saturate::apps {
namespace {

TEST(EnglishNumber, MatchesUsage) {
  EXPECT_EQ(english_number(0), "zero");
  EXPECT_EQ(english_number(13), "thirteen");
  EXPECT_EQ(english_number(40), "forty");
  EXPECT_EQ(english_number(121), "one hundred and twenty-one");
  EXPECT_EQ(english_number(2041), "two thousand and forty-one");
  EXPECT_EQ(english_number(1200), "one thousand two hundred");
  EXPECT_EQ(english_number(99999), "ninety-nine thousand nine hundred and ninety-nine");
  EXPECT_EQ(english_number(1000001), "one million and one");
  EXPECT_EQ(english_number(2345100),
            "two million three hundred and forty-five thousand one hundred");
}

// The forms of Cunha and Cintra's grammar: "e" between hundreds, tens and units, and before a last
// group that is below 100 or a whole hundred.
TEST(PortugueseNumber, JoinsGroups) {
  const auto m = [](int64_t n) { return portuguese_number(n, Gender::masculine); };
  EXPECT_EQ(m(0), "zero");
  EXPECT_EQ(m(14), "catorze");
  EXPECT_EQ(m(16), "dezesseis");
  EXPECT_EQ(m(21), "vinte e um");
  EXPECT_EQ(m(100), "cem");
  EXPECT_EQ(m(101), "cento e um");
  EXPECT_EQ(m(120), "cento e vinte");
  EXPECT_EQ(m(555), "quinhentos e cinquenta e cinco");
  EXPECT_EQ(m(1000), "mil");
  EXPECT_EQ(m(1001), "mil e um");
  EXPECT_EQ(m(1100), "mil e cem");
  EXPECT_EQ(m(1200), "mil e duzentos");
  EXPECT_EQ(m(1987), "mil novecentos e oitenta e sete");
  EXPECT_EQ(m(2041), "dois mil e quarenta e um");
  EXPECT_EQ(m(2345), "dois mil trezentos e quarenta e cinco");
  EXPECT_EQ(m(100000), "cem mil");
  EXPECT_EQ(m(101101), "cento e um mil cento e um");
  EXPECT_EQ(m(1000000), "um milhão");
  EXPECT_EQ(m(1000001), "um milhão e um");
  EXPECT_EQ(m(1200000), "um milhão e duzentos mil");
  EXPECT_EQ(m(1234000), "um milhão duzentos e trinta e quatro mil");
  EXPECT_EQ(m(2345100), "dois milhões trezentos e quarenta e cinco mil e cem");
}

TEST(PortugueseNumber, AgreesInGender) {
  const auto f = [](int64_t n) { return portuguese_number(n, Gender::feminine); };
  EXPECT_EQ(f(1), "uma");
  EXPECT_EQ(f(21), "vinte e uma");
  EXPECT_EQ(f(100), "cem");
  EXPECT_EQ(f(102), "cento e duas");
  EXPECT_EQ(f(200), "duzentas");
  EXPECT_EQ(f(2000), "duas mil");
  EXPECT_EQ(f(21000), "vinte e uma mil");
  EXPECT_EQ(f(2000002), "dois milhões e duas");  // millions stay masculine
}

TEST(QuickstartCorpus, SetsShareNoPhrase) {
  const QuickstartCorpus corpus = make_quickstart_corpus(5000, 400, 7);
  EXPECT_EQ(corpus.train.size(), 5000u);
  EXPECT_EQ(corpus.valid.size(), 200u);
  EXPECT_EQ(corpus.test.size(), 400u);
  std::set<std::string> phrases;
  for (const auto* set : {&corpus.train, &corpus.valid, &corpus.test}) {
    for (const Pair& pair : *set) {
      EXPECT_TRUE(phrases.insert(pair.english).second) << pair.english;
      EXPECT_FALSE(pair.portuguese.empty());
      EXPECT_EQ(pair.portuguese.find("  "), std::string::npos) << pair.portuguese;
    }
  }
}

TEST(QuickstartCorpus, PhrasesAreTranslatedAsTheyShould) {
  const QuickstartCorpus corpus = make_quickstart_corpus(120000, 2, 1);
  const auto translation = [&](const std::string& english) {
    for (const Pair& pair : corpus.train) {
      if (pair.english == english) return pair.portuguese;
    }
    return "no such phrase: " + english;
  };
  int dates = 0;
  for (const Pair& pair : corpus.train) {
    if (!pair.english.starts_with("march 3rd, ")) continue;
    EXPECT_EQ(pair.portuguese, "3 de março de " + pair.english.substr(11));
    ++dates;
  }
  EXPECT_GT(dates, 0);
  EXPECT_EQ(translation("may 1st"), "primeiro de maio");
  EXPECT_EQ(translation("one million reais"), "um milhão de reais");
  EXPECT_EQ(translation("one pound"), "uma libra");
  EXPECT_EQ(translation("two red houses"), "duas casas vermelhas");
  EXPECT_EQ(translation("at half past one in the afternoon"), "à uma e meia da tarde");
  EXPECT_EQ(translation("it is ten to one in the afternoon"), "são dez para a uma da tarde");
  EXPECT_EQ(translation("it is one in the afternoon"), "é uma da tarde");
  EXPECT_EQ(translation("9:00 am"), "9h");
  EXPECT_EQ(translation("12:05 am"), "0h05");
  EXPECT_EQ(translation("the twenty-first letter"), "a vigésima primeira carta");
  EXPECT_EQ(translation("twenty-five percent"), "vinte e cinco por cento");
}

TEST(QuickstartCorpus, IsAFunctionOfTheSeed) {
  const auto first = [](uint64_t seed) {
    return make_quickstart_corpus(1, 2, seed).test[0].english;
  };
  EXPECT_EQ(first(1), first(1));
  EXPECT_NE(first(1), first(2));
}

TEST(QuickstartCorpus, RefusesWhatItCannotWrite) {
  EXPECT_THROW(make_quickstart_corpus(0, 100, 1), Error);
  EXPECT_THROW(make_quickstart_corpus(1000, 1, 1), Error);
  EXPECT_THROW(make_quickstart_corpus(int64_t{1} << 40, 100, 1), Error);
}

}  // namespace
}  // namespace saturate::apps
