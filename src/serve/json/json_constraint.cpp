// SPDX-License-Identifier: Apache-2.0
#include "serve/json/json_constraint.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string>
#include <string_view>

#include "base/error.h"
#include "base/utf8.h"

namespace saturate::serve {
namespace {

constexpr size_t kMaskBytes = size_t{16} << 20;
constexpr size_t kMostStacks = size_t{1} << 20;  // some 100 bytes each
// Alternatives that are followed side by side; others are given up, which allows less and nothing wrong.
constexpr size_t kMostAlternatives = 64;

// Whether every state that is behind whole characters leads to an end. Where not every byte is a token only
// those of ASCII are taken to come alone; others may come, and lead nowhere that these do not lead on from.
bool spells(const Dfa& pattern, const TokenBytes& tokens) {
  std::array<bool, 256> has;
  for (size_t b = 0; b < has.size(); ++b) {
    const char byte = static_cast<char>(b);
    has[b] = tokens.spells(std::string_view(&byte, 1));
  }
  bool others = true;
  for (size_t b = 0x80; b < 0xF5; ++b) others = others && (has[b] || b == 0xC0 || b == 0xC1);
  std::fill(has.begin() + 0x80, has.end(), others);
  const std::vector<bool> ends = states_that_end(pattern, has);
  for (size_t i = 0; i < ends.size(); ++i)
    if (!ends[i] && !pattern.states[i].within) return false;
  return true;
}

void require_spelling(const JsonSchema& schema, const TokenBytes& tokens) {
  const auto require = [&](std::string_view text) {
    for (size_t at = 0; at < text.size();) {
      const size_t begin = at;
      next_utf8(text, at);
      const std::string_view character = text.substr(begin, at - begin);
      if (tokens.spells(character)) continue;
      throw Error(
          Errc::invalid_argument, "json",
          fmt::format("no token of this model spells \"{}\", which {}; ask for other text, or "
                      "another model",
                      character, schema.is_text ? "the choices hold" : "the JSON needs"));
    }
  };
  if (!schema.is_text) require("{}[]:,\"-0123456789truefalsn");
  for (const JsonSchema::Node& n : schema.nodes) {
    for (const JsonSchema::Property& p : n.properties) require(p.name);
    for (const std::string& text : n.texts) require(text);
  }
  for (const Dfa& pattern : schema.patterns) {
    if (spells(pattern, tokens)) continue;
    throw Error(
        Errc::invalid_argument, "json",
        fmt::format("the tokens of this model do not spell all that {} needs; leave it out, or ask "
                    "another model",
                    schema.is_text ? "the pattern" : "a pattern of the schema"));
  }
}

// Marks that are no tokens of their own, by their names.
JsonSchema with_spelt_marks(JsonSchema schema, const TokenBytes& tokens) {
  for (const TokenMark& mark : kTokenMarks) {
    if (tokens.spells(std::string_view(&mark.byte, 1))) continue;
    for (JsonSchema::Node& n : schema.nodes) {
      if (n.kind != JsonSchema::Node::Kind::prefixed) continue;
      std::string& text = n.texts[0];
      for (size_t at; (at = text.find(mark.byte)) != text.npos;) text.replace(at, 1, mark.name);
    }
  }
  return schema;
}

}  // namespace

JsonConstraint::JsonConstraint(JsonSchema schema, std::shared_ptr<const TokenBytes> tokens,
                               std::vector<int32_t> ends)
    : automaton_(with_spelt_marks(std::move(schema), *tokens)),
      tokens_(std::move(tokens)),
      ends_(std::move(ends)) {
  require_spelling(automaton_.schema(), *tokens_);
  start_ = state_of({automaton_.start()});
}

int32_t JsonConstraint::state_of(Stacks stacks) {
  const auto [at, fresh] = numbers_.try_emplace(stacks, static_cast<int32_t>(states_.size()));
  if (fresh) {
    states_.push_back({std::move(stacks)});
    large_ = states_.size() > kMostStacks || automaton_.stacks() > kMostStacks;
  }
  return at->second;
}

void JsonConstraint::step(const Stacks& from, unsigned char byte, Stacks& to) {
  to.clear();
  for (const int32_t stack : from) automaton_.step(stack, byte, to);
  if (to.size() < 2) return;
  std::ranges::sort(to);
  const auto same = std::ranges::unique(to);
  to.erase(same.begin(), same.end());
  if (to.size() > kMostAlternatives) to.resize(kMostAlternatives);
}

int32_t JsonConstraint::next(int32_t state, int32_t id) {
  Stacks now = states_[static_cast<size_t>(state)].stacks, then;
  for (const char c : tokens_->of(id)) {
    step(now, static_cast<unsigned char>(c), then);
    std::swap(now, then);
  }
  return state_of(std::move(now));
}

std::span<const uint32_t> JsonConstraint::allowed(int32_t state) {
  const auto at = static_cast<size_t>(state);
  if (states_[at].mask.empty()) {
    if (masks_ * tokens_->words() * sizeof(uint32_t) >= kMaskBytes) {
      for (State& s : states_) s.mask = {};
      masks_ = 0;
    }
    states_[at].mask = make_mask(states_[at].stacks);
    ++masks_;
  }
  return states_[at].mask;
}

TokenMask JsonConstraint::make_mask(const Stacks& stacks) {
  TokenMask mask(tokens_->words());
  Stacks others;  // of which nothing is known beforehand
  levels_.resize(std::max<size_t>(levels_.size(), 1));
  for (const int32_t stack : stacks) {
    if (automaton_.in_pattern(stack)) {
      walk_pattern(stack, automaton_.pattern_state(stack), 0, tokens_->all().size(), 0, mask);
      continue;
    }
    const int32_t room = automaton_.free_characters(stack);
    if (room == -2) {
      others.push_back(stack);
      continue;
    }
    const TokenMask& plain = tokens_->plain(room);
    for (size_t i = 0; i < mask.size(); ++i) mask[i] |= plain[i];
    levels_[0] = {stack};
    walk(tokens_->special(), 0, tokens_->special().size(), 0, mask);
  }
  if (!others.empty()) {
    levels_[0] = others;
    walk(tokens_->all(), 0, tokens_->all().size(), 0, mask);
  }
  if (std::ranges::any_of(stacks, [&](int32_t s) { return automaton_.complete(s); }))
    for (const int32_t id : ends_)
      if (static_cast<size_t>(id) / 32 < mask.size()) allow_token(mask, id);
  return mask;
}

// Allows the tokens of nodes begin .. end, which lie side by side, behind levels_[depth].
void JsonConstraint::walk(const TokenTree& tree, int32_t begin, int32_t end, size_t depth,
                          TokenMask& mask) {
  if (levels_.size() < depth + 2) levels_.resize(depth + 2);
  for (int32_t i = begin; i < end;) {
    const TokenTree::Node& node = tree.nodes[static_cast<size_t>(i)];
    step(levels_[depth], node.byte, levels_[depth + 1]);
    if (!levels_[depth + 1].empty()) {
      const int32_t last = tree.nodes[static_cast<size_t>(i) + 1].first;
      for (int32_t t = node.first; t < last; ++t)
        allow_token(mask, tree.ids[static_cast<size_t>(t)]);
      if (i + 1 < node.end) walk(tree, i + 1, node.end, depth + 1, mask);
    }
    i = node.end;
  }
}

// The same for one stack within a pattern, by the states of the pattern alone: in a text where nearly any
// token may come all of the tree is walked, and for each character of it again where characters are counted.
void JsonConstraint::walk_pattern(int32_t stack, int16_t state, int32_t begin, int32_t end,
                                  size_t depth, TokenMask& mask) {
  const TokenTree& tree = tokens_->all();
  const Dfa::State& from = automaton_.pattern_of(stack).states[static_cast<size_t>(state)];
  for (int32_t i = begin; i < end;) {
    const TokenTree::Node& node = tree.nodes[static_cast<size_t>(i)];
    if (const int16_t to = from.next[node.byte]; to >= 0) {
      const int32_t last = tree.nodes[static_cast<size_t>(i) + 1].first;
      for (int32_t t = node.first; t < last; ++t)
        allow_token(mask, tree.ids[static_cast<size_t>(t)]);
      if (i + 1 < node.end) walk_pattern(stack, to, i + 1, node.end, depth + 1, mask);
    } else if (from.accepts &&
               !automaton_.schema().is_text) {  // what may come behind it is no longer its own
      if (levels_.size() <= depth) levels_.resize(depth + 1);
      levels_[depth] = {automaton_.with_pattern_state(stack, state)};
      walk(tree, i, node.end, depth, mask);
    }
    i = node.end;
  }
}

}  // namespace saturate::serve
