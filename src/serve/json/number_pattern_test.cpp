// SPDX-License-Identifier: Apache-2.0
#include "serve/json/number_pattern.h"

#include <gtest/gtest.h>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <string>

#include "base/error.h"
#include "serve/json/dfa_operations.h"

namespace saturate::serve {
namespace {

Dfa pattern_of(const NumberRange& range) {
  PatternBudget budget;
  return number_pattern(range, "f", budget);
}
NumberRange range_of(std::optional<NumberBound> least, std::optional<NumberBound> most) {
  NumberRange r;
  r.least = least;
  r.most = most;
  return r;
}

TEST(NumberPattern, TakesDecimalsWithinBounds) {
  struct Case {
    NumberRange range;
    std::vector<const char*> good, bad;
  };
  for (const Case& c :
       {Case{range_of(NumberBound{0, false}, NumberBound{1, false}),
             {"0", "0.0", "0.5", "0.999999999999999", "1", "1.0", "1.000", "-0", "-0.0"},
             {"1.01", "1.0001", "-0.1", "2", "10", "00", "01", "1.", ".5", "+1", "1e0", "-", ""}},
        {range_of(NumberBound{0, true}, NumberBound{1, true}),
         {"0.1", "0.000000000000001", "0.999999999999999"},
         {"0", "0.0", "-0", "1", "1.0", "1.00000000000000"}},
        {range_of(NumberBound{-1.25, false}, NumberBound{10.5, true}),
         {"-1.25", "-1.2500", "-1.249", "-0.3", "0", "9.99", "10", "10.49", "10.4999"},
         {"-1.26", "-1.2501", "10.5", "10.50", "10.51", "11", "-2", "100"}},
        {range_of(NumberBound{123.456, true}, std::nullopt),
         {"123.4561", "123.457", "123.5", "124", "999999999999999", "1000"},
         {"123.456", "123.4560", "123.45", "123", "99", "-200", "1000000000000000"}},
        {range_of(std::nullopt, NumberBound{-0.001, false}),
         {"-0.001", "-0.0010", "-0.002", "-5", "-999999999999999"},
         {"-0.0009", "0", "-0", "0.002", "5"}},
        {range_of(NumberBound{1e-7, false}, NumberBound{1e300, false}),
         {"0.0000001", "0.00000011", "1", "999999999999999"},
         {"0.00000009", "0", "-1"}},
        {range_of(NumberBound{7, false}, NumberBound{7, false}),
         {"7", "7.0", "7.00000000000000"},
         {"7.1", "6", "8", "70"}}}) {
    const Dfa dfa = pattern_of(c.range);
    for (const char* text : c.good) EXPECT_TRUE(takes_text(dfa, text)) << text;
    for (const char* text : c.bad) EXPECT_FALSE(takes_text(dfa, text)) << text;
    EXPECT_LT(dfa.states.size(), 400u);
  }
}

// What a reader of doubles finds within the bounds, for all that is written.
TEST(NumberPattern, AgreesWithDoubles) {
  std::mt19937 random(4);
  const auto digits = [&](int n) {
    std::string text;
    for (int i = 0; i < n; ++i) text += static_cast<char>('0' + random() % 10);
    return text;
  };
  for (int round = 0; round < 60; ++round) {
    const auto number = [&] {
      std::string text = random() % 2 ? "-" : "";
      text += std::to_string(random() % (random() % 2 ? 10 : 2000));
      if (random() % 3) text += "." + digits(1 + static_cast<int>(random() % 4));
      return text;
    };
    double low = std::stod(number()), high = std::stod(number());
    if (low > high) std::swap(low, high);
    if (high - low < 1) high += 1;
    const NumberBound least{low, random() % 2 == 0}, most{high, random() % 2 == 0};
    const Dfa dfa = pattern_of(range_of(least, most));
    for (int i = 0; i < 400; ++i) {
      std::string text = number();
      if (random() % 4 == 0) text = fmt::format("{}", random() % 2 ? low : high);
      if (text.find('e') != std::string::npos) continue;
      if (random() % 4 == 0) text += text.find('.') == std::string::npos ? ".0" : "0";
      if (random() % 6 == 0 && text.find('.') != std::string::npos) text += "0000001";
      // More digits are not written.
      if (std::ranges::count_if(text, [](char d) { return d >= '0' && d <= '9'; }) > 15) continue;
      const double value = std::stod(text);
      const bool within = (least.exclusive ? value > low : value >= low) &&
                          (most.exclusive ? value < high : value <= high);
      EXPECT_EQ(takes_text(dfa, text), within) << text << " in " << low << " .. " << high;
    }
  }
}

TEST(NumberPattern, TakesMultiples) {
  for (const int64_t of : {1, 2, 3, 7, 10, 60, 100, 1000, 4096}) {
    NumberRange all;
    all.whole = true;
    all.multiple = NumberMultiple{of, 0};
    NumberRange some = all;
    some.least = NumberBound{-250, false};
    some.most = NumberBound{1300, true};
    const Dfa open = pattern_of(all);
    // As the digits of both count, small ones alone.
    const Dfa held = of <= 1000 ? pattern_of(some) : Dfa{};
    for (int64_t i = -1500; i <= 9000; ++i) {
      const std::string text = std::to_string(i);
      EXPECT_EQ(takes_text(open, text), i % of == 0) << text << " of " << of;
      if (of <= 1000) {
        EXPECT_EQ(takes_text(held, text), i % of == 0 && -250 <= i && i < 1300) << text;
      }
    }
    EXPECT_FALSE(takes_text(open, "-0"));
    EXPECT_FALSE(takes_text(open, "0.0"));
  }
  NumberRange money;
  money.whole = true;
  money.multiple = NumberMultiple{1000, 0};
  EXPECT_LT(pattern_of(money).states.size(), 80u);  // only the last digits matter
}

TEST(NumberPattern, TakesMultiplesOfDecimals) {
  for (const double of : {0.01, 0.05, 0.25, 0.5, 0.75, 1.5, 2.5, 0.003}) {
    const NumberMultiple multiple = number_multiple(of).value();
    for (const bool whole : {false, true}) {
      NumberRange all;
      all.whole = whole;
      all.multiple = multiple;
      NumberRange some = all;
      some.least = NumberBound{-0.5, true};
      some.most = NumberBound{2.5, false};
      const Dfa open = pattern_of(all), held = pattern_of(some);
      for (int64_t i = -3000; i <= 9000; ++i) {  // thousandths
        for (int digits = 0; digits <= 4; ++digits) {
          if (digits < 3 && i % (digits == 0 ? 1000 : digits == 1 ? 100 : 10) != 0) continue;
          const std::string text = fmt::format("{:.{}f}", static_cast<double>(i) / 1000, digits);
          if (text.starts_with("-0") && text.find_first_of("123456789") == text.npos) continue;
          int64_t thousandths = multiple.digits;
          for (int k = multiple.decimals; k < 3; ++k) thousandths *= 10;
          const bool written = digits == 0 || (!whole && digits <= multiple.decimals);
          EXPECT_EQ(takes_text(open, text), written && i % thousandths == 0) << text << " " << of;
          EXPECT_EQ(takes_text(held, text),
                    written && i % thousandths == 0 && i > -500 && i <= 2500)
              << text << " " << of;
        }
      }
    }
  }
  for (const double none : {0.0, -1.0, 1e-16, 0.12345678, 2e6, 1234567.0})
    EXPECT_FALSE(number_multiple(none)) << none;
  EXPECT_EQ(number_multiple(1e-8)->decimals, 8);
  EXPECT_EQ(number_multiple(120)->digits, 120);
}

TEST(NumberPattern, SaysWhatIsTooMuch) {
  const auto why = [](const NumberRange& range, size_t steps) -> std::string {
    PatternBudget budget{.steps = steps};
    try {
      number_pattern(range, "f.minimum", budget);
    } catch (const Error& e) {
      return e.what();
    }
    return "";
  };
  NumberRange many;
  many.whole = true;
  many.multiple = NumberMultiple{99991, 0};
  EXPECT_NE(why(many, 10'000'000).find("f.minimum: it takes too many states"), std::string::npos);
  EXPECT_NE(why(many, 100).find("takes too long"), std::string::npos);
  EXPECT_NE(why(range_of(NumberBound{2, false}, NumberBound{1, false}), 1 << 20).find("no number"),
            std::string::npos);
  // Between neighbours of 15 digits lies none.
  EXPECT_NE(
      why(range_of(NumberBound{100000000000000, true}, NumberBound{100000000000001, true}), 1 << 20)
          .find("no number"),
      std::string::npos);
}

}  // namespace
}  // namespace saturate::serve
