// SPDX-License-Identifier: Apache-2.0
// Work on files that ranks share, done in step: what one of them cannot do fails on all.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "parallel/communicator.h"

namespace saturate::train {

/// All calls are collective over the ranks, in one order; of one rank they only run what they are
/// given. Not thread safe.
class Together {
 public:
  Together() = default;  // one rank
  explicit Together(parallel::Communicator& ranks) : ranks_(&ranks) {}

  int rank() const noexcept { return ranks_ == nullptr ? 0 : ranks_->rank(); }
  int size() const noexcept { return ranks_ == nullptr ? 1 : ranks_->size(); }

  // Runs `work` on every rank, or on the first alone, and returns when all have done it. Where it
  // throws, all ranks throw: the rank itself what it threw, the others an Error of the same code
  // with the rank and the text, of the lowest rank that failed. What is no Error, nor of the file
  // system, has the code internal there.
  void all(const std::function<void()>& work) const;
  void first(const std::function<void()>& work) const;

  // The text of the lowest rank that has one; empty when none has.
  std::string first_text(std::string mine) const;

  // What `root` has, on every rank.
  std::string from(int root, std::string text) const;
  std::vector<uint64_t> from(int root, std::vector<uint64_t> numbers) const;

 private:
  int lowest(bool that) const;  // rank with `that`, size() when there is none

  parallel::Communicator* ranks_ = nullptr;
};

}  // namespace saturate::train
