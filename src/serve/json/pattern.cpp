// SPDX-License-Identifier: Apache-2.0
#include "serve/json/pattern.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "base/error.h"
#include "base/utf8.h"
#include "serve/json/pattern_parser.h"

namespace saturate::serve {
namespace {

constexpr size_t kMostParts = 200000;  // states before they are made deterministic
constexpr std::string_view kTooLarge =
    "it has more than 4096 states; make it, its counts or the length of the text smaller";
constexpr std::string_view kTooLong =
    "compiling the patterns takes too long; make them, their counts or lengths smaller";
constexpr std::string_view kTextTooLarge =
    "it has more than 16384 states; make it or its counts smaller";

[[noreturn]] void refuse(const std::string& where, std::string_view what) {
  throw Error(Errc::invalid_argument, "schema", fmt::format("{}: {}", where, what));
}

using Part = PatternPart;

// States that several ways may lead to at once, by bytes.
class Nfa {
 public:
  // `json`: of what stands between the quotes of a string; else of a text as it is.
  Nfa(bool json, const std::string& where, PatternBudget& budget)
      : json_(json), where_(where), budget_(budget) {
    add(false);
  }

  Dfa deterministic(const Part& whole) {
    const int32_t end = build(whole, 0);
    // Without edges, which the end of a repeat has: behind $ nothing comes.
    accept_ = add(false);
    beside(end, accept_);
    closed_.resize(states_.size(), 0);
    Dfa out;
    std::map<std::vector<int32_t>, int16_t> numbers;
    std::vector<std::vector<int32_t>> sets;
    const auto number_of = [&](const std::vector<int32_t>& set) {
      const auto [at, fresh] = numbers.try_emplace(set, static_cast<int16_t>(sets.size()));
      if (fresh) {
        if (sets.size() >= (json_ ? Dfa::kMostStates : Dfa::kMostStatesOfText))
          refuse(where_, json_ ? kTooLarge : kTextTooLarge);
        sets.push_back(set);
      }
      return at->second;
    };
    number_of(closure({0}, true));
    for (size_t i = 0; i < sets.size(); ++i) {
      const std::vector<int32_t> set = sets[i];  // a copy: the list grows
      Dfa::State state{};
      state.next.fill(-1);
      state.accepts = std::ranges::binary_search(set, accept_);
      state.within = !set.empty() && states_[static_cast<size_t>(set[0])].within;
      // Ranges of bytes that all go the same ways.
      std::array<bool, 257> cuts{};
      std::vector<Edge> edges;
      for (const int32_t s : set)
        for (const Edge& e : states_[static_cast<size_t>(s)].edges) {
          edges.push_back(e);
          cuts[e.low] = cuts[e.high + 1u] = true;
        }
      for (unsigned low = 0; low < 256;) {
        unsigned high = low + 1;
        while (high < 256 && !cuts[high]) ++high;
        std::vector<int32_t> to;
        for (const Edge& e : edges)
          if (e.low <= low && low <= e.high) to.push_back(e.to);
        work(edges.size());
        if (!to.empty()) {
          const int16_t next = number_of(closure(std::move(to), false));
          std::fill(state.next.begin() + low, state.next.begin() + high, next);
        }
        low = high;
      }
      out.states.push_back(state);
    }
    return out;
  }

 private:
  struct Edge {
    uint8_t low, high;
    int32_t to;
  };
  struct State {
    std::vector<Edge> edges;
    std::vector<int32_t> beside;  // states that one is in too
    bool within;                  // a character
    // Where the text must begin or end here; without edges.
    enum class Gate : uint8_t { none, begin, end } gate = Gate::none;
  };

  void work(size_t steps) {
    if (steps > budget_.steps) refuse(where_, kTooLong);
    budget_.steps -= steps;
  }
  int32_t add(bool within) {
    if (states_.size() >= kMostParts) refuse(where_, json_ ? kTooLarge : kTextTooLarge);
    states_.push_back({.edges = {}, .beside = {}, .within = within, .gate = State::Gate::none});
    return static_cast<int32_t>(states_.size() - 1);
  }
  void beside(int32_t from, int32_t to) {
    if (from != to) states_[static_cast<size_t>(from)].beside.push_back(to);
  }

  // The state behind `part`. No edges lead back to `from`, which others may start from too.
  int32_t build(const Part& part, int32_t from) {
    work(16);
    switch (part.kind) {
      case Part::Kind::set: {
        const int32_t end = add(false);
        std::map<std::array<int32_t, 3>, int32_t> tails;
        for (const auto& [low, high] : part.set) characters(low, high, from, end, tails);
        return end;
      }
      case Part::Kind::sequence:
        for (const Part& each : part.parts) from = build(each, from);
        return from;
      case Part::Kind::choice: {
        if (part.parts.size() == 1) return build(part.parts[0], from);
        const int32_t end = add(false);
        for (const Part& each : part.parts) beside(build(each, from), end);
        return end;
      }
      case Part::Kind::begin:
      case Part::Kind::end: {
        const int32_t gate = add(false), end = add(false);
        states_[static_cast<size_t>(gate)].gate =
            part.kind == Part::Kind::begin ? State::Gate::begin : State::Gate::end;
        beside(from, gate);
        beside(gate, end);
        return end;
      }
      case Part::Kind::repeat:
        break;
    }
    const Part& inner = part.parts[0];
    for (int32_t i = 0; i < part.least; ++i) from = build(inner, from);
    const int32_t end = add(false);
    if (part.most < 0) {
      if (part.rest) rests_.push_back(end);
      beside(from, end);
      beside(build(inner, end), end);
      return end;
    }
    for (int32_t i = part.least; i < part.most; ++i) {
      beside(from, end);
      from = build(inner, from);
    }
    beside(from, end);
    return end;
  }

  // Characters of a range; of JSON without those that a string does not have as they are.
  void characters(char32_t low, char32_t high, int32_t from, int32_t end,
                  std::map<std::array<int32_t, 3>, int32_t>& tails) {
    if (json_) low = std::max<char32_t>(low, 0x20);
    for (const char32_t c : {U'"', U'\\'}) {
      if (!json_ || c < low || c > high) continue;
      if (c > low) characters(low, c - 1, from, end, tails);
      const auto byte = static_cast<uint8_t>(c);
      edge(from, '\\', '\\', tail(byte, byte, end, tails));
      if (c < high) characters(c + 1, high, from, end, tails);
      return;
    }
    // One length of bytes each, without surrogates.
    constexpr std::array<std::pair<char32_t, char32_t>, 5> kLengths = {
        {{0, 0x7F}, {0x80, 0x7FF}, {0x800, 0xD7FF}, {0xE000, 0xFFFF}, {0x10000, kLastCharacter}}};
    for (const auto& [least, most] : kLengths)
      if (low <= most && high >= least)
        of_one_length(std::max(low, least), std::min(high, most), from, end, tails);
  }

  void of_one_length(char32_t low, char32_t high, int32_t from, int32_t end,
                     std::map<std::array<int32_t, 3>, int32_t>& tails) {
    std::string first, last;
    append_utf8(first, low);
    append_utf8(last, high);
    // Split until behind the first bytes that differ all may come.
    for (size_t i = 1; i < first.size(); ++i) {
      const char32_t mask = (char32_t{1} << (6 * i)) - 1;
      if ((low & ~mask) == (high & ~mask)) continue;
      if ((low & mask) != 0) {
        of_one_length(low, low | mask, from, end, tails);
        return of_one_length((low | mask) + 1, high, from, end, tails);
      }
      if ((high & mask) != mask) {
        of_one_length(low, (high & ~mask) - 1, from, end, tails);
        return of_one_length(high & ~mask, high, from, end, tails);
      }
    }
    int32_t to = end;
    for (size_t i = first.size() - 1; i > 0; --i)
      to = tail(static_cast<uint8_t>(first[i]), static_cast<uint8_t>(last[i]), to, tails);
    edge(from, static_cast<uint8_t>(first[0]), static_cast<uint8_t>(last[0]), to);
  }

  void edge(int32_t from, uint8_t low, uint8_t high, int32_t to) {
    work(1);
    states_[static_cast<size_t>(from)].edges.push_back({low, high, to});
  }
  // The state within a character that these bytes lead from; the same for the same.
  int32_t tail(uint8_t low, uint8_t high, int32_t to,
               std::map<std::array<int32_t, 3>, int32_t>& tails) {
    const auto [at, fresh] = tails.try_emplace({low, high, to}, -1);
    if (fresh) {
      at->second = add(true);
      edge(at->second, low, high, to);
    }
    return at->second;
  }

  // All states beside these, sorted, of those that matter. `first`: nothing was read yet.
  std::vector<int32_t> closure(std::vector<int32_t> open, bool first) {
    ++round_;
    std::vector<int32_t> out, ended;
    while (!open.empty()) {
      const int32_t s = open.back();
      open.pop_back();
      int32_t& closed = closed_[static_cast<size_t>(s)];
      if (closed == round_) continue;
      closed = round_;
      // Where any text may follow it does not matter what else would.
      if (std::ranges::binary_search(rests_, s))
        return {std::min(rests_[0], accept_), std::max(rests_[0], accept_)};
      const State& state = states_[static_cast<size_t>(s)];
      work(1 + state.beside.size());
      if (state.gate == State::Gate::begin && !first) continue;
      if (!state.edges.empty() || s == accept_) out.push_back(s);
      std::vector<int32_t>& then = state.gate == State::Gate::end ? ended : open;
      then.insert(then.end(), state.beside.begin(), state.beside.end());
    }
    const bool accepts = std::ranges::count(out, accept_) > 0;
    if (!accepts && ends_behind(std::move(ended), first)) out.push_back(accept_);
    std::ranges::sort(out);
    return out;
  }

  // Whether these states lead to the end without anything more.
  bool ends_behind(std::vector<int32_t> open, bool first) {
    for (++round_; !open.empty();) {
      const int32_t s = open.back();
      open.pop_back();
      if (s == accept_) return true;
      int32_t& closed = closed_[static_cast<size_t>(s)];
      if (closed == round_) continue;
      closed = round_;
      const State& state = states_[static_cast<size_t>(s)];
      work(1 + state.beside.size());
      if (state.gate == State::Gate::begin && !first) continue;
      open.insert(open.end(), state.beside.begin(), state.beside.end());
    }
    return false;
  }

  const bool json_;
  const std::string& where_;
  PatternBudget& budget_;
  std::vector<State> states_;
  std::vector<int32_t> closed_;  // the round in which a state was last met
  // From which any text leads to the end, in order; the first stands for all of them.
  std::vector<int32_t> rests_;
  int32_t accept_ = 0, round_ = 0;
};

Dfa pruned(const Dfa& dfa, const std::string& where) {
  Dfa out = without_dead_ends(dfa);
  if (out.states.empty())
    refuse(where, "no text meets it (control characters are never written, lengths count)");
  return out;
}

// Characters of the longest text; none where there is no longest. All states lead to an end.
std::optional<int32_t> longest(const Dfa& dfa) {
  constexpr int32_t kFresh = -2, kOpen = -1;
  std::vector<int32_t> known(dfa.states.size(), kFresh);
  const auto from = [&](const auto& self, size_t i) -> bool {  // false: it may go on for ever
    if (known[i] != kFresh) return known[i] != kOpen;
    known[i] = kOpen;
    const Dfa::State& state = dfa.states[i];
    int32_t most = 0, last = -1;
    for (const int16_t to : state.next) {
      if (to < 0 || to == last) continue;
      last = to;
      if (!self(self, static_cast<size_t>(to))) return false;
      most = std::max(most, known[static_cast<size_t>(to)] + (state.within ? 0 : 1));
    }
    known[i] = most;
    return true;
  };
  if (!from(from, 0)) return std::nullopt;
  return known[0];
}

// Held to so many characters: a state is one of `dfa` and how many characters were begun.
Dfa counted(const Dfa& dfa, int32_t least, int32_t most, const std::string& where) {
  const int32_t top = most >= 0 ? most : least;  // beyond which nothing is counted
  std::map<std::pair<int16_t, int32_t>, int16_t> numbers;
  std::vector<std::pair<int16_t, int32_t>> pairs;
  const auto number_of = [&](int16_t state, int32_t count) {
    const auto [at, fresh] =
        numbers.try_emplace({state, count}, static_cast<int16_t>(pairs.size()));
    if (fresh) {
      if (pairs.size() >= Dfa::kMostStates) refuse(where, kTooLarge);
      pairs.emplace_back(state, count);
    }
    return at->second;
  };
  number_of(0, 0);
  Dfa out;
  for (size_t i = 0; i < pairs.size(); ++i) {
    const auto [from, count] = pairs[i];
    Dfa::State state = dfa.states[static_cast<size_t>(from)];
    state.accepts = state.accepts && count >= least;
    const int32_t then = state.within ? count : count + 1;
    for (int16_t& to : state.next)
      if (to >= 0) to = then > top && most >= 0 ? int16_t{-1} : number_of(to, std::min(then, top));
    out.states.push_back(state);
  }
  return out;
}

}  // namespace

std::vector<bool> states_that_end(const Dfa& dfa, const std::array<bool, 256>& may_come) {
  const size_t n = dfa.states.size();
  std::vector<std::vector<int16_t>> before(n);
  std::vector<int16_t> open;
  for (size_t i = 0; i < n; ++i) {
    int16_t last = -1;  // neighbouring bytes mostly lead to the same
    for (size_t b = 0; b < may_come.size(); ++b) {
      const int16_t to = dfa.states[i].next[b];
      if (to < 0 || to == last || !may_come[b]) continue;
      last = to;
      before[static_cast<size_t>(to)].push_back(static_cast<int16_t>(i));
    }
    if (dfa.states[i].accepts) open.push_back(static_cast<int16_t>(i));
  }
  std::vector<bool> ends(n);
  while (!open.empty()) {
    const auto s = static_cast<size_t>(open.back());
    open.pop_back();
    if (ends[s]) continue;
    ends[s] = true;
    open.insert(open.end(), before[s].begin(), before[s].end());
  }
  return ends;
}

Dfa without_dead_ends(const Dfa& dfa) {
  if (dfa.states.empty()) return {};
  std::array<bool, 256> all;
  all.fill(true);
  const std::vector<bool> ends = states_that_end(dfa, all);
  if (!ends[0]) return {};
  const size_t n = dfa.states.size();
  std::vector<int16_t> number(n, -1);
  int16_t kept = 0;
  for (size_t i = 0; i < n; ++i)
    if (ends[i]) number[i] = kept++;
  Dfa out;
  for (size_t i = 0; i < n; ++i) {
    if (number[i] < 0) continue;
    Dfa::State state = dfa.states[i];
    for (int16_t& to : state.next)
      if (to >= 0) to = number[static_cast<size_t>(to)];
    out.states.push_back(state);
  }
  return out;
}

Dfa compile_pattern(std::string_view pattern, const std::string& where, int32_t least, int32_t most,
                    PatternBudget* budget) {
  PatternBudget own;
  const Part whole = parse_pattern(pattern, PatternSyntax::ecma, where);
  Dfa out = pruned(Nfa(true, where, budget != nullptr ? *budget : own).deterministic(whole), where);
  if (const std::optional<int32_t> own_most = longest(out); own_most && most >= *own_most)
    most = -1;
  if (least > 0 || most >= 0) out = pruned(counted(out, least, most, where), where);
  return out;
}

Dfa compile_text_pattern(std::string_view pattern, const std::string& where) {
  PatternBudget budget;
  const Part whole = parse_pattern(pattern, PatternSyntax::python, where);
  Dfa out = without_dead_ends(Nfa(false, where, budget).deterministic(whole));
  if (out.states.empty()) refuse(where, "no text matches it");
  return out;
}

std::string format_pattern(std::string_view format) {
  // Without the year 0, which many readers of dates do not have; the 29th of February in leap years.
  const std::string date =
      "(?:(?:[1-9]\\d{3}|0[1-9]\\d\\d|00[1-9]\\d|000[1-9])-(?:(?:0[13578]|1[02])-"
      "(?:0[1-9]|[12]\\d|3[01])|(?:0[469]|11)-(?:0[1-9]|[12]\\d|30)|02-(?:0[1-9]|1\\d|2[0-8]))|"
      "(?:\\d\\d(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)-02-29)";
  // Without leap seconds.
  const std::string time =
      "(?:[01]\\d|2[0-3]):[0-5]\\d:[0-5]\\d(?:\\.\\d{1,6})?(?:Z|[+-](?:[01]\\d|2[0-3]):[0-5]\\d)";
  if (format == "date") return "^" + date + "$";
  if (format == "time") return "^" + time + "$";
  if (format == "date-time") return "^" + date + "T" + time + "$";
  if (format == "uuid") return "^[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$";
  if (format == "ipv4")
    return "^(?:(?:25[0-5]|2[0-4]\\d|1\\d\\d|[1-9]?\\d)\\.){3}"
           "(?:25[0-5]|2[0-4]\\d|1\\d\\d|[1-9]?\\d)$";
  // Names of letters and digits with single marks between them, within the lengths that mail has.
  if (format == "email")
    return "^[A-Za-z0-9]{1,20}(?:[._+-][A-Za-z0-9]{1,20}){0,2}@"
           "(?:[A-Za-z0-9]{1,20}(?:-[A-Za-z0-9]{1,20}){0,2}\\.){1,2}[A-Za-z]{2,20}$";
  return {};
}

}  // namespace saturate::serve
