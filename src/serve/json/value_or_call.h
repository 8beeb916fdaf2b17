// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <compare>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "serve/json/json_constraint.h"

namespace saturate::serve {

/// Holds continuations to one of two: a value, or a call that begins with a mark; where the mark is "" both may
/// be followed until one is left. Spaces may stand before the mark as before a value.
///
/// For one request: its states are as many as its continuations have tokens, and what costs is kept by the two.
class ValueOrCall : public model::TokenConstraint {
 public:
  // `mark_id`: a token that is the mark and perhaps no text. Both constraints are of `tokens`.
  ValueOrCall(std::shared_ptr<JsonConstraint> value, std::shared_ptr<JsonConstraint> call,
              std::string mark, std::optional<int32_t> mark_id,
              std::shared_ptr<const TokenBytes> tokens);

  int32_t start() override { return 0; }
  int32_t next(int32_t state, int32_t id) override;
  std::span<const uint32_t> allowed(int32_t state) override;

 private:
  // What the continuation may still be, -1 each: not this. `mark`: so many bytes of it are there.
  struct State {
    int32_t value, mark, call;
    auto operator<=>(const State&) const = default;
  };
  int32_t number_of(State state);
  bool allows(JsonConstraint& constraint, int32_t state, int32_t id);
  int32_t mark_after(int32_t mark, int32_t id) const;  // -1: it does not go on with it

  const std::shared_ptr<JsonConstraint> value_, call_;
  const std::string mark_;
  const std::optional<int32_t> mark_id_;
  const std::shared_ptr<const TokenBytes> tokens_;
  std::vector<State> states_;
  std::map<State, int32_t> numbers_;
  TokenMask mask_;  // of the state that was asked for last, where it is not one of the two's own
};

}  // namespace saturate::serve
