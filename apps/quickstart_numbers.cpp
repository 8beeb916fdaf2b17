// SPDX-License-Identifier: Apache-2.0
// Numbers in English and Portuguese words.
#include "apps/quickstart_grammar.h"
#include "base/error.h"

namespace saturate::apps {
namespace {

constexpr int64_t kThousand = 1000, kMillion = 1000000;

constexpr const char* kEnglishSmall[] = {"zero",    "one",     "two",       "three",    "four",
                                         "five",    "six",     "seven",     "eight",    "nine",
                                         "ten",     "eleven",  "twelve",    "thirteen", "fourteen",
                                         "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"};
constexpr const char* kEnglishTens[] = {"",      "",      "twenty",  "thirty", "forty",
                                        "fifty", "sixty", "seventy", "eighty", "ninety"};
constexpr const char* kPortugueseSmall[] = {
    "zero",    "um",     "dois",      "três",      "quatro",  "cinco",   "seis",
    "sete",    "oito",   "nove",      "dez",       "onze",    "doze",    "treze",
    "catorze", "quinze", "dezesseis", "dezessete", "dezoito", "dezenove"};
constexpr const char* kPortugueseTens[] = {"",         "",          "vinte",    "trinta",
                                           "quarenta", "cinquenta", "sessenta", "setenta",
                                           "oitenta",  "noventa"};
// Stems of the hundreds; "os" or "as" follows from two hundred on.
constexpr const char* kPortugueseHundreds[] = {"",           "cent",     "duzent",   "trezent",
                                               "quatrocent", "quinhent", "seiscent", "setecent",
                                               "oitocent",   "novecent"};

std::string english_below_thousand(int64_t n) {
  if (n >= 100) {
    const std::string hundreds = std::string(kEnglishSmall[n / 100]) + " hundred";
    return n % 100 ? hundreds + " and " + english_below_thousand(n % 100) : hundreds;
  }
  if (n < 20) return kEnglishSmall[n];
  const std::string tens = kEnglishTens[n / 10];
  return n % 10 ? tens + "-" + kEnglishSmall[n % 10] : tens;
}

std::string portuguese_below_thousand(int64_t n, Gender gender) {
  const bool feminine = gender == Gender::feminine;
  if (n == 100) return "cem";
  if (n > 100) {
    const std::string hundreds =
        n < 200 ? "cento" : std::string(kPortugueseHundreds[n / 100]) + (feminine ? "as" : "os");
    return n % 100 ? hundreds + " e " + portuguese_below_thousand(n % 100, gender) : hundreds;
  }
  if (n == 1 && feminine) return "uma";
  if (n == 2 && feminine) return "duas";
  if (n < 20) return kPortugueseSmall[n];
  const std::string tens = kPortugueseTens[n / 10];
  return n % 10 ? tens + " e " + portuguese_below_thousand(n % 10, gender) : tens;
}

// Appends `group` to `number`; "e" only before the last group, when it is below 100 or a whole
// hundred.
void join(std::string& number, const std::string& words, int64_t group, bool is_last) {
  if (!number.empty()) number += is_last && (group < 100 || group % 100 == 0) ? " e " : " ";
  number += words;
}

}  // namespace

std::string english_number(int64_t n) {
  SAT_ASSERT(n >= 0 && n < kThousand * kMillion);
  if (n < kThousand) return english_below_thousand(n);
  const bool by_million = n >= kMillion;
  const int64_t unit = by_million ? kMillion : kThousand;
  const int64_t rest = n % unit;
  const std::string head =
      english_below_thousand(n / unit) + (by_million ? " million" : " thousand");
  if (rest == 0) return head;
  return head + (rest < 100 ? " and " : " ") + english_number(rest);
}

std::string portuguese_number(int64_t n, Gender gender) {
  SAT_ASSERT(n >= 0 && n < kThousand * kMillion);
  if (n == 0) return "zero";
  const int64_t millions = n / kMillion, thousands = n % kMillion / kThousand,
                units = n % kThousand;
  std::string number;
  if (millions > 0) {
    number = portuguese_below_thousand(millions, Gender::masculine) +
             (millions == 1 ? " milhão" : " milhões");
  }
  if (thousands > 0) {
    const std::string words =
        thousands == 1 ? "mil" : portuguese_below_thousand(thousands, gender) + " mil";
    join(number, words, thousands, units == 0);
  }
  if (units > 0) join(number, portuguese_below_thousand(units, gender), units, true);
  return number;
}

}  // namespace saturate::apps
