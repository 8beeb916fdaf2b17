// SPDX-License-Identifier: Apache-2.0
#include "serve/json/dfa_operations.h"

#include <fmt/format.h>

#include <map>
#include <utility>
#include <vector>

#include "base/error.h"

namespace saturate::serve {
namespace {

[[noreturn]] void refuse(const std::string& where, std::string_view what) {
  throw Error(Errc::invalid_argument, "schema", fmt::format("{}: {}", where, what));
}

constexpr std::string_view kTooLarge =
    "names by patterns take more than 4096 states; make the patterns smaller";

// `second`: whether a text must be one of `b` or must not. A state is one of each; -1: no longer one of `b`.
Dfa product(const Dfa& a, const Dfa& b, bool second, const std::string& where,
            PatternBudget& budget) {
  if (a.states.empty() || (second && b.states.empty())) return {};
  std::map<std::pair<int16_t, int16_t>, int16_t> numbers;
  std::vector<std::pair<int16_t, int16_t>> pairs;
  const auto number_of = [&](int16_t x, int16_t y) {
    const auto [at, fresh] = numbers.try_emplace({x, y}, static_cast<int16_t>(pairs.size()));
    if (fresh) {
      if (pairs.size() >= Dfa::kMostStates) refuse(where, kTooLarge);
      if (budget.steps < 128)
        refuse(where, "compiling the patterns takes too long; make them smaller");
      budget.steps -= 128;
      pairs.emplace_back(x, y);
    }
    return at->second;
  };
  number_of(0, b.states.empty() ? int16_t{-1} : int16_t{0});
  Dfa out;
  for (size_t i = 0; i < pairs.size(); ++i) {
    const auto [x, y] = pairs[i];
    Dfa::State state = a.states[static_cast<size_t>(x)];
    const Dfa::State* other = y < 0 ? nullptr : &b.states[static_cast<size_t>(y)];
    state.accepts = state.accepts && second == (other != nullptr && other->accepts);
    std::pair<int16_t, int16_t> last = {-1, -1};  // neighbouring bytes mostly lead to the same
    int16_t number = -1;
    for (size_t byte = 0; byte < state.next.size(); ++byte) {
      const std::pair<int16_t, int16_t> to = {state.next[byte],
                                              other != nullptr ? other->next[byte] : int16_t{-1}};
      state.next[byte] = -1;
      if (to.first < 0 || (second && to.second < 0)) continue;
      if (to != last) number = number_of(to.first, to.second);
      last = to;
      state.next[byte] = number;
    }
    out.states.push_back(state);
  }
  return without_dead_ends(out);
}

}  // namespace

Dfa in_both(const Dfa& a, const Dfa& b, const std::string& where, PatternBudget& budget) {
  return product(a, b, true, where, budget);
}

Dfa in_first_alone(const Dfa& a, const Dfa& b, const std::string& where, PatternBudget& budget) {
  return product(a, b, false, where, budget);
}

Dfa of_texts(std::span<const std::string> texts, const std::string& where) {
  Dfa out;
  const auto add = [&] {
    if (out.states.size() >= Dfa::kMostStates) refuse(where, kTooLarge);
    Dfa::State state{};
    state.next.fill(-1);
    out.states.push_back(state);
    return static_cast<int16_t>(out.states.size() - 1);
  };
  add();
  for (const std::string& text : texts) {
    int16_t at = 0;
    for (const char c : text) {
      const auto byte = static_cast<unsigned char>(c);
      int16_t to = out.states[static_cast<size_t>(at)].next[byte];
      if (to < 0) {
        to = add();
        out.states[static_cast<size_t>(at)].next[byte] = to;
      }
      at = to;
    }
    out.states[static_cast<size_t>(at)].accepts = true;
  }
  return out;
}

bool takes_text(const Dfa& dfa, std::string_view text) {
  if (dfa.states.empty()) return false;
  int16_t at = 0;
  for (const char c : text) {
    at = dfa.states[static_cast<size_t>(at)].next[static_cast<unsigned char>(c)];
    if (at < 0) return false;
  }
  return dfa.states[static_cast<size_t>(at)].accepts;
}

}  // namespace saturate::serve
