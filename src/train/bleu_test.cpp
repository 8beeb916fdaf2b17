// SPDX-License-Identifier: Apache-2.0
// The expected values of the tables come from sacreBLEU 2.6.0 (BLEU().corpus_score,
// CHRF().corpus_score, tokenizer 13a) and bytes.decode("utf-8", "replace") of Python 3.11 on the
// text beside them.
#include "train/bleu.h"

#include <gtest/gtest.h>

#include <vector>

#include "base/error.h"
#include "train/bleu_text.h"
#include "train/chrf.h"

namespace saturate::train {
namespace {

struct TextPair {
  std::string text, expected;
};

// The lengths are given so that a text may hold a zero byte.
template <size_t N, size_t M>
TextPair pair(const char (&text)[N], const char (&expected)[M]) {
  return {std::string(text, N - 1), std::string(expected, M - 1)};
}

TEST(Bleu, TokenizesAs13a) {
  const TextPair kCases[] = {
      pair("Hello, world!", "Hello , world !"),
      pair("It costs 1,000.50 dollars (about 3-4% more).",
           "It costs 1,000.50 dollars ( about 3 - 4 % more ) ."),
      pair("a.b,c 1.5 ,5 5, .5 x.", "a . b , c 1.5 , 5 5 , . 5 x ."),
      pair("10-12 e-mail -5 9- -", "10 - 12 e-mail -5 9 - -"),
      pair("&quot;AT&amp;T&quot; &lt;b&gt; &amp;lt;", "\" AT & T \" < b > <"),
      pair("<skipped>end", "end"),
      pair("line-\x0a"
           "break\x0ahere",
           "linebreak here"),
      pair(" \xe3\x80\x80 wide\xc2\xa0space\xe2\x80\xa8 ", "wide space"),
      pair("don't stop: it's [a] {test} ~ `x` ^_^",
           "don't stop : it's [ a ] { test } ~ ` x ` ^ _ ^"),
      pair("\xe2\x80\x9eGuten Tag\xe2\x80\x9c, sagte er.",
           "\xe2\x80\x9eGuten Tag\xe2\x80\x9c , sagte er ."),
      pair("\xe6\x97\xa5\xe6\x9c\xac\xe8\xaa\x9e\xe3\x81\xae\xe6\x96\x87\xe3\x80\x82",
           "\xe6\x97\xa5\xe6\x9c\xac\xe8\xaa\x9e\xe3\x81\xae\xe6\x96\x87\xe3\x80\x82"),
      pair("caf\xc3\xa9, na\xc3\xafve; \xc3\x9c"
           "ber-Mut 3\xc2\xbd",
           "caf\xc3\xa9 , na\xc3\xafve ; \xc3\x9c"
           "ber-Mut 3\xc2\xbd"),
      pair("..,,..", ". . , , . ."),
      pair("1.2.3,4,5", "1.2.3,4,5"),
      pair("", ""),
      pair("\xf0\x9f\x98\x80:) 100%", "\xf0\x9f\x98\x80 : ) 100 %"),
      pair("a\x00"
           "b\x1f"
           "c\x7f",
           "a\x00"
           "b c\x7f"),
  };
  for (const auto& c : kCases) EXPECT_EQ(tokenize_13a(c.text), c.expected) << c.text;
}

struct ScoreCase {
  const char* name;
  std::vector<std::string> hypotheses, references;
  const char* bleu;
  const char* chrf;
};

TEST(Bleu, EqualsSacrebleuToTheLastPrintedDigit) {
  const ScoreCase kCases[] = {
      {"equal",
       {"The cat sat on the mat.", "A second line, with 2 commas, and 1.5 points."},
       {"The cat sat on the mat.", "A second line, with 2 commas, and 1.5 points."},
       "BLEU = 100.00 100.0/100.0/100.0/100.0 (BP = 1.000 ratio = 1.000 hyp_len = 19 ref_len = 19)",
       "chrF2 = 100.00"},
      {"one word off",
       {"The cat sat on a mat.", "We saw 12 birds near the old river."},
       {"The cat sat on the mat.", "We saw 12 birds near the old river."},
       "BLEU = 80.59 93.8/85.7/75.0/70.0 (BP = 1.000 ratio = 1.000 hyp_len = 16 ref_len = 16)",
       "chrF2 = 87.46"},
      {"short hypothesis",
       {"The cat sat.", "We saw birds"},
       {"The cat sat on the mat.", "We saw 12 birds near the old river."},
       "BLEU = 15.55 100.0/60.0/33.3/50.0 (BP = 0.276 ratio = 0.438 hyp_len = 7 ref_len = 16)",
       "chrF2 = 32.37"},
      {"long hypothesis",
       {"The big black cat sat down on the soft mat now.",
        "We all saw some 12 birds near the old river today."},
       {"The cat sat on the mat.", "We saw 12 birds near the old river."},
       "BLEU = 29.00 66.7/31.8/20.0/16.7 (BP = 1.000 ratio = 1.500 hyp_len = 24 ref_len = 16)",
       "chrF2 = 61.05"},
      {"repeats are clipped",
       {"the the the the the the the", "a a a a b"},
       {"the cat is on the mat now", "a b a b a"},
       "BLEU = 10.68 50.0/10.0/6.2/4.2 (BP = 1.000 ratio = 1.000 hyp_len = 12 ref_len = 12)",
       "chrF2 = 13.55"},
      {"smoothing of higher orders",
       {"cat the mat sat"},
       {"the cat sat on mat"},
       "BLEU = 17.59 100.0/16.7/12.5/12.5 (BP = 0.779 ratio = 0.800 hyp_len = 4 ref_len = 5)",
       "chrF2 = 40.11"},
      {"fewer than four words",
       {"Good morning"},
       {"Good morning"},
       "BLEU = 0.00 100.0/100.0/0.0/0.0 (BP = 1.000 ratio = 1.000 hyp_len = 2 ref_len = 2)",
       "chrF2 = 100.00"},
      {"nothing matches",
       {"alpha beta gamma delta"},
       {"one two three four"},
       "BLEU = 0.00 0.0/0.0/0.0/0.0 (BP = 1.000 ratio = 1.000 hyp_len = 4 ref_len = 4)",
       "chrF2 = 6.40"},
      {"empty hypothesis",
       {"", "A line that is here."},
       {"Something was said.", "A line that is here."},
       "BLEU = 51.34 100.0/100.0/100.0/100.0 (BP = 0.513 ratio = 0.600 hyp_len = 6 ref_len = 10)",
       "chrF2 = 53.76"},
      {"empty reference",
       {"Something was said.", "A line that is here."},
       {"", "A line that is here."},
       "BLEU = 65.80 60.0/62.5/66.7/75.0 (BP = 1.000 ratio = 1.667 hyp_len = 10 ref_len = 6)",
       "chrF2 = 100.00"},
      {"all empty",
       {"", ""},
       {"", ""},
       "BLEU = 0.00 0.0/0.0/0.0/0.0 (BP = 1.000 ratio = 0.000 hyp_len = 0 ref_len = 0)",
       "chrF2 = 0.00"},
      {"only hypothesis empty",
       {""},
       {"Something was said."},
       "BLEU = 0.00 0.0/0.0/0.0/0.0 (BP = 0.000 ratio = 0.000 hyp_len = 0 ref_len = 4)",
       "chrF2 = 0.00"},
      {"case counts",
       {"the Cat Sat on the mat"},
       {"The cat sat on the mat"},
       "BLEU = 30.21 50.0/40.0/25.0/16.7 (BP = 1.000 ratio = 1.000 hyp_len = 6 ref_len = 6)",
       "chrF2 = 57.04"},
      {"german",
       {"Zwei junge M\xc3\xa4nner stehen drau\xc3\x9f"
        "en, nahe am B\xc3\xbcro.",
        "Drei Z\xc3\xbcge fahren um 9:30 Uhr."},
       {"Zwei junge M\xc3\xa4nner stehen drau\xc3\x9f"
        "en vor dem B\xc3\xbcro.",
        "Die drei Z\xc3\xbcge fahren um 9:30 Uhr los."},
       "BLEU = 56.50 78.9/64.7/53.3/46.2 (BP = 0.949 ratio = 0.950 hyp_len = 19 ref_len = 20)",
       "chrF2 = 77.50"},
      {"french",
       {"L'\xc3\xa9t\xc3\xa9 dernier, nous avons mang\xc3\xa9 1,5 kg de pommes "
        "\xc2\xabvertes\xc2\xbb."},
       {"L'\xc3\xa9t\xc3\xa9 pass\xc3\xa9, nous avons mang\xc3\xa9 1,5 kg de pommes \xc2\xab "
        "vertes \xc2\xbb."},
       "BLEU = 54.89 83.3/63.6/60.0/55.6 (BP = 0.846 ratio = 0.857 hyp_len = 12 ref_len = 14)",
       "chrF2 = 82.23"},
      {"chinese and japanese",
       {"\xe6\x88\x91\xe4\xbb\xac\xe6\x98\xa8\xe5\xa4\xa9\xe7\x9c\x8b\xe8\xa7\x81\xe4\xba\x86\xe4"
        "\xb8\x89\xe5\x8f\xaa\xe7\x8c\xab\xe3\x80\x82",
        "\xe6\x97\xa5\xe6\x9c\xac\xe8\xaa\x9e\xe3\x81\xae\xe6\x96\x87\xe3\x82\x92\xe8\xa8\xb3\xe3"
        "\x81\x97\xe3\x81\xbe\xe3\x81\x99\xe3\x80\x82"},
       {"\xe6\x88\x91\xe4\xbb\xac\xe6\x98\xa8\xe5\xa4\xa9\xe7\x9c\x8b\xe5\x88\xb0\xe4\xb8\x89\xe5"
        "\x8f\xaa\xe7\x8c\xab\xe3\x80\x82",
        "\xe6\x97\xa5\xe6\x9c\xac\xe8\xaa\x9e\xe3\x81\xae\xe6\x96\x87\xe7\xab\xa0\xe3\x82\x92\xe8"
        "\xa8\xb3\xe3\x81\x97\xe3\x81\xbe\xe3\x81\x99\xe3\x80\x82"},
       "BLEU = 0.00 0.0/0.0/0.0/0.0 (BP = 1.000 ratio = 1.000 hyp_len = 2 ref_len = 2)",
       "chrF2 = 54.08"},
      {"emoji and combining",
       {"cafe\xcc\x81 \xf0\x9f\x98\x80 ok 10-20", "x\xe2\x80\x8by"},
       {"caf\xc3\xa9 \xf0\x9f\x98\x80 ok 10-20", "x y"},
       "BLEU = 63.38 71.4/80.0/75.0/66.7 (BP = 0.867 ratio = 0.875 hyp_len = 7 ref_len = 8)",
       "chrF2 = 62.72"},
      {"entities",
       {"He said &quot;yes&quot; &amp; left.", "1 &lt; 2"},
       {"He said \"yes\" & left.", "1 < 2"},
       "BLEU = 100.00 100.0/100.0/100.0/100.0 (BP = 1.000 ratio = 1.000 hyp_len = 11 ref_len = 11)",
       "chrF2 = 36.82"},
      {"unicode spaces",
       {"one\xc2\xa0two\xe3\x80\x80three four five\xe2\x80\x83six"},
       {"one two three four five six"},
       "BLEU = 100.00 100.0/100.0/100.0/100.0 (BP = 1.000 ratio = 1.000 hyp_len = 6 ref_len = 6)",
       "chrF2 = 100.00"},
  };
  for (const auto& c : kCases) {
    EXPECT_EQ(corpus_bleu(c.hypotheses, c.references).to_string(), c.bleu) << c.name;
    EXPECT_EQ(corpus_chrf(c.hypotheses, c.references).to_string(), c.chrf) << c.name;
  }
}

TEST(Bleu, RefusesWhatCannotBeScored) {
  const std::vector<std::string> one{"a"}, two{"a", "b"}, none;
  EXPECT_THROW(corpus_bleu(one, two), Error);
  EXPECT_THROW(corpus_bleu(none, none), Error);
  EXPECT_THROW(corpus_chrf(two, one), Error);
  EXPECT_THROW(corpus_chrf(none, none), Error);
}

}  // namespace
}  // namespace saturate::train
