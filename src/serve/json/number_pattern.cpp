// SPDX-License-Identifier: Apache-2.0
#include "serve/json/number_pattern.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <map>
#include <string_view>
#include <tuple>
#include <vector>

#include "base/error.h"

namespace saturate::serve {
namespace {

constexpr size_t kMostStatesTried = 65536;  // before equal ones become one
constexpr size_t kStepsOfState = 48;
constexpr std::string_view kSymbols = "0123456789-.";

[[noreturn]] void refuse(const std::string& where, std::string_view what) {
  throw Error(Errc::invalid_argument, "schema", fmt::format("{}: {}", where, what));
}

// Digits before the point without leading zeros, and behind it without trailing ones: 0 has none.
struct Decimal {
  std::string whole, fraction;
};

// The shortest digits that are read back as this number.
Decimal decimal_of(double value) {
  const std::string text = fmt::format("{}", std::abs(value));
  const size_t e = std::min(text.find('e'), text.size());
  int power = 0;
  if (e < text.size()) {
    const char* begin = text.data() + e + 1;
    std::from_chars(*begin == '+' ? begin + 1 : begin, text.data() + text.size(), power);
  }
  const size_t point = std::min(text.find('.'), e);
  std::string digits = text.substr(0, point);
  if (point < e) digits += text.substr(point + 1, e - point - 1);
  auto before = static_cast<std::ptrdiff_t>(point) + power;
  if (before < 0) digits.insert(0, static_cast<size_t>(-before), '0');
  before = std::max<std::ptrdiff_t>(before, 0);
  if (before > std::ssize(digits))
    digits.append(static_cast<size_t>(before - std::ssize(digits)), '0');
  Decimal d{digits.substr(0, static_cast<size_t>(before)),
            digits.substr(static_cast<size_t>(before))};
  d.whole.erase(0, std::min(d.whole.find_first_not_of('0'), d.whole.size()));
  d.fraction.erase(d.fraction.find_last_not_of('0') + 1);
  return d;
}

// A bound of a number without its sign.
struct Limit {
  bool is_there = false, never = false, exclusive = false;
  Decimal at = {};
};
struct Side {
  Limit least, most;
};

enum Order : int8_t { less = -1, equal = 0, greater = 1 };
enum class Phase : uint8_t { begin, minus, zero, whole, point, fraction };

struct State {
  Phase phase = Phase::begin;
  bool negative = false;
  int digits = 0;  // whole: those there; point and fraction: those that may still come
  int place = 0;   // point and fraction: digits behind the point, as far as a bound has some
  // Of what is there to as many digits of the bounds.
  Order least = equal, most = equal;
  int64_t rest = 0;  // of the division by the digits of `multiple`
  int behind = 0;    // fraction, where there is one: digits there
  auto key() const { return std::tuple(phase, negative, digits, place, least, most, rest, behind); }
};

class Builder {
 public:
  Builder(const NumberRange& range, const std::string& where, PatternBudget& budget)
      : range_(range), where_(where), budget_(budget) {
    const auto limit = [](const NumberBound& b) {
      return Limit{.is_there = true, .exclusive = b.exclusive, .at = decimal_of(b.value)};
    };
    Side &up = sides_[0], &down = sides_[1];
    if (const auto& b = range.least) {
      if (b->value >= 0) up.least = limit(*b);
      if (b->value <= 0) down.most = limit(*b);
      down.most.never = b->value > 0;
    }
    if (const auto& b = range.most) {
      if (b->value >= 0) up.most = limit(*b);
      if (b->value <= 0) down.least = limit(*b);
      up.most.never = b->value < 0;
    }
    if (range.multiple) multiple_ = *range.multiple;
    // Both sides alike: one is enough.
    one_side_ = !range.least && !range.most;
  }

  Dfa built() {
    const int32_t start = build({});
    if (start < 0) refuse(where_, "no number of at most 15 digits lies within the bounds");
    const size_t n = rows_.size();
    if (n > Dfa::kMostStates)
      refuse(where_, "it takes more than 4096 states; make multipleOf or the bounds smaller");
    // States were numbered after those that they lead to, the start last.
    const auto number = [n](int32_t id) {
      return static_cast<int16_t>(id < 0 ? -1 : static_cast<int32_t>(n) - 1 - id);
    };
    Dfa out;
    out.states.resize(n);
    for (size_t i = 0; i < n; ++i) {
      Dfa::State& state = out.states[static_cast<size_t>(number(static_cast<int32_t>(i)))];
      state.next.fill(-1);
      for (size_t s = 0; s < kSymbols.size(); ++s)
        state.next[static_cast<unsigned char>(kSymbols[s])] = number(rows_[i][s]);
      state.accepts = rows_[i][kSymbols.size()] != 0;
      state.within = false;
    }
    return out;
  }

 private:
  using Row = std::array<int32_t, 13>;  // by symbol, and whether it accepts

  // The number of the state that takes what `s` takes; -1: nothing. Depth: that of a number's characters.
  int32_t build(const State& s) {
    if (const auto known = known_.find(s.key()); known != known_.end()) return known->second;
    if (known_.size() >= kMostStatesTried)
      refuse(where_, "it takes too many states; make multipleOf smaller");
    if (budget_.steps < kStepsOfState)
      refuse(where_, "compiling the schema takes too long; make multipleOf and the bounds smaller");
    budget_.steps -= kStepsOfState;
    Row row;
    row.fill(-1);
    for (size_t symbol = 0; symbol < kSymbols.size(); ++symbol) {
      State to = s;
      if (step(to, kSymbols[symbol])) row[symbol] = build(to);
    }
    row[kSymbols.size()] = accepts(s) ? 1 : 0;
    int32_t id = -1;
    const bool leads = std::any_of(row.begin(), row.end() - 1, [](int32_t to) { return to >= 0; });
    if (leads || accepts(s)) {
      const auto [at, fresh] = numbers_.try_emplace(row, static_cast<int32_t>(rows_.size()));
      if (fresh) rows_.push_back(row);
      id = at->second;
    }
    known_.emplace(s.key(), id);
    return id;
  }

  const Side& side(const State& s) const { return sides_[s.negative ? 1 : 0]; }

  static Order with(char digit, char bound) {
    return digit < bound ? less : digit > bound ? greater : equal;
  }

  // One digit more before the point; to as many digits of the bound.
  static Order longer(Order order, const Limit& limit, int place, char digit) {
    const int n = static_cast<int>(limit.at.whole.size());
    if (!limit.is_there || order != equal || place >= n) return place >= n ? equal : order;
    return with(digit, limit.at.whole[static_cast<size_t>(place)]);
  }
  // That of the whole digits, when all are there.
  static Order of_whole(Order order, const Limit& limit, int digits) {
    const int n = static_cast<int>(limit.at.whole.size());
    return !limit.is_there ? equal : digits < n ? less : digits > n ? greater : order;
  }
  static Order of_fraction(Order order, const Limit& limit, int place, char digit) {
    if (!limit.is_there || order != equal) return order;
    const std::string& f = limit.at.fraction;
    return with(digit, place < std::ssize(f) ? f[static_cast<size_t>(place)] : '0');
  }
  // When nothing comes behind `place` digits of the fraction.
  static Order at_end(Order order, const Limit& limit, int place) {
    return order == equal && place < std::ssize(limit.at.fraction) ? less : order;
  }

  bool step(State& s, char c) const {
    if (c == '-') {
      if (s.phase != Phase::begin) return false;
      s.phase = Phase::minus;
      s.negative = !one_side_;
      return true;
    }
    if (c == '.') {
      if (range_.whole || (s.phase != Phase::zero && s.phase != Phase::whole)) return false;
      if (s.digits >= kMostNumberDigits) return false;
      s.least = of_whole(s.least, side(s).least, s.digits);
      s.most = of_whole(s.most, side(s).most, s.digits);
      s.phase = Phase::point;
      s.digits = kMostNumberDigits - s.digits;
      return may_be(s);
    }
    switch (s.phase) {
      case Phase::begin:
      case Phase::minus:
        if (c == '0') {
          if (s.phase == Phase::minus && range_.whole) return false;
          s.phase = Phase::zero;
          return true;
        }
        s.phase = Phase::whole;
        break;
      case Phase::zero:
        return false;
      case Phase::whole:
        if (s.digits >= kMostNumberDigits) return false;
        break;
      case Phase::point:
      case Phase::fraction:
        if (s.digits == 0 || (range_.multiple && s.behind == multiple_.decimals)) return false;
        s.phase = Phase::fraction;
        --s.digits;
        if (range_.multiple) ++s.behind;
        s.rest = (s.rest * 10 + (c - '0')) % multiple_.digits;
        s.least = of_fraction(s.least, side(s).least, s.place, c);
        s.most = of_fraction(s.most, side(s).most, s.place, c);
        // Beyond the digits of the bounds places are alike.
        s.place =
            std::min<int>(s.place + 1, static_cast<int>(std::max(side(s).least.at.fraction.size(),
                                                                 side(s).most.at.fraction.size())));
        if (s.least != equal && s.most != equal) s.place = 0;
        return may_be(s);
    }
    s.least = longer(s.least, side(s).least, s.digits, c);
    s.most = longer(s.most, side(s).most, s.digits, c);
    ++s.digits;
    s.rest = (s.rest * 10 + (c - '0')) % multiple_.digits;
    return true;
  }

  // Behind the point: whether it is not yet beyond a bound.
  bool may_be(const State& s) const {
    const Side& of = side(s);
    return !of.least.never && !of.most.never && (!of.least.is_there || s.least != less) &&
           (!of.most.is_there || s.most != greater);
  }

  bool accepts(State s) const {
    if (s.phase == Phase::begin || s.phase == Phase::minus || s.phase == Phase::point) return false;
    const Side& of = side(s);
    if (s.phase != Phase::fraction) {
      s.least = of_whole(s.least, of.least, s.digits);
      s.most = of_whole(s.most, of.most, s.digits);
      s.place = 0;
    }
    const Order low = at_end(s.least, of.least, s.place), high = at_end(s.most, of.most, s.place);
    // As if all of its decimals were there.
    int64_t rest = s.rest;
    for (int i = s.behind; i < multiple_.decimals; ++i) rest = rest * 10 % multiple_.digits;
    if (of.least.never || of.most.never || rest != 0) return false;
    if (of.least.is_there && (low == less || (low == equal && of.least.exclusive))) return false;
    return !of.most.is_there || high == less || (high == equal && !of.most.exclusive);
  }

  const NumberRange& range_;
  const std::string& where_;
  PatternBudget& budget_;
  NumberMultiple multiple_;
  std::array<Side, 2> sides_;
  bool one_side_ = false;
  std::map<decltype(State().key()), int32_t> known_;
  std::map<Row, int32_t> numbers_;
  std::vector<Row> rows_;
};

}  // namespace

std::optional<NumberMultiple> number_multiple(double value) {
  if (!(value > 0) || value > static_cast<double>(kMostMultiple)) return std::nullopt;
  const Decimal d = decimal_of(value);
  const std::string text = d.whole + d.fraction;
  const size_t first = text.find_first_not_of('0');
  if (d.fraction.size() > kMostNumberDigits || text.size() - first > 7) return std::nullopt;
  NumberMultiple out{.digits = 0, .decimals = static_cast<int>(d.fraction.size())};
  for (const char c : text) out.digits = out.digits * 10 + (c - '0');
  if (out.digits > kMostMultiple) return std::nullopt;
  return out;
}

Dfa number_pattern(const NumberRange& range, const std::string& where, PatternBudget& budget) {
  return Builder(range, where, budget).built();
}

}  // namespace saturate::serve
