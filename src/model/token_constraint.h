// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <span>

namespace saturate::model {

/// Which tokens a continuation may have next, by those that it has. What it has is a number, so that one
/// object serves many sequences. From the generator's thread alone.
class TokenConstraint {
 public:
  virtual ~TokenConstraint() = default;

  virtual int32_t start() = 0;  // of a continuation that has none
  // Of one that gets `id`, which was allowed and is no end.
  virtual int32_t next(int32_t state, int32_t id) = 0;
  // A bit for each id, 32 a word, the lowest first; ids behind the words are not allowed. Ends are ids like
  // others: allowed where the continuation may end. Valid until the next call.
  virtual std::span<const uint32_t> allowed(int32_t state) = 0;
};

}  // namespace saturate::model
