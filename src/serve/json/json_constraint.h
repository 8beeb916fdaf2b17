// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "model/token_constraint.h"
#include "serve/json/automaton.h"
#include "serve/json/token_bytes.h"

namespace saturate::serve {

/// Holds continuations to JSON that a schema allows: a token may come where all of its bytes may, an end
/// exactly where the value is complete. Masks are kept by state, 16 MiB of them at most.
///
/// Cost: a state that was met before, a look-up; a new one a walk through the tree of tokens, of which most
/// is cut off at its first byte, or within a string, where most tokens may come, only those that could end
/// it; where a pattern holds the string, all that it lets begin. (Measured: docs/guide/serve.md.)
class JsonConstraint : public model::TokenConstraint {
 public:
  // `ends`: ids that end a continuation. Errors: invalid_argument where no tokens spell the characters that
  // JSON or the schema needs.
  JsonConstraint(JsonSchema schema, std::shared_ptr<const TokenBytes> tokens,
                 std::vector<int32_t> ends);

  int32_t start() override { return start_; }
  int32_t next(int32_t state, int32_t id) override;
  std::span<const uint32_t> allowed(int32_t state) override;

  // Whether it holds so much that a fresh one is better for the next request. From any thread.
  bool is_large() const noexcept { return large_; }

 private:
  // Stacks that what was written may be, sorted.
  using Stacks = std::vector<int32_t>;
  struct State {
    Stacks stacks;
    TokenMask mask = {};  // empty: not made yet, or given up
  };
  int32_t state_of(Stacks stacks);
  void step(const Stacks& from, unsigned char byte, Stacks& to);
  TokenMask make_mask(const Stacks& stacks);
  void walk(const TokenTree& tree, int32_t begin, int32_t end, size_t depth, TokenMask& mask);
  void walk_pattern(int32_t stack, int16_t state, int32_t begin, int32_t end, size_t depth,
                    TokenMask& mask);

  JsonAutomaton automaton_;
  const std::shared_ptr<const TokenBytes> tokens_;
  const std::vector<int32_t> ends_;
  std::vector<State> states_;
  std::map<Stacks, int32_t> numbers_;
  std::vector<Stacks> levels_;  // of a walk, by depth
  size_t masks_ = 0;
  int32_t start_ = 0;
  std::atomic<bool> large_ = false;
};

}  // namespace saturate::serve
