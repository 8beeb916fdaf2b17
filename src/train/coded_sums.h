// SPDX-License-Identifier: Apache-2.0
// Sums of gradients over the copies of shared state (hybrid sharding: between hosts) that travel in
// 8 bits, with error feedback: parallel.reduce_between = "int8".
//
// The elements of a sum are dealt out to its ranks in parts of whole blocks. Each rank sends the
// other ranks their parts in 8 bits; the owner of a part adds its own values, in full, and what came,
// in the order of ranks, and sends the sum to all in 8 bits, by which it goes on itself: all ranks
// have the same bits. What rounding took is kept and joins the next sum: on the owner of a part what
// the sum lost, on the other ranks what they lost on the way to it. So over any steps the sum of what
// was applied is the exact one but for the residuals of all ranks, added up.
#pragma once
#include <vector>

#include "kernels/compression/compression.h"
#include "ops/parameter_group.h"
#include "parallel/communicator.h"
#include "runtime/memory.h"

namespace saturate {
class ParameterStore;
}

namespace saturate::train {

// How a sum of `count` elements is cut over `ranks`.
struct CodedParts {
  CodedParts(int64_t count, int ranks);
  int64_t blocks;  // of each part; the last parts may lie behind the elements
  int64_t words;   // of 32 bits, that a part takes on its way
};

class CodedSums {
 public:
  // The values of one bucket of a group of parameters: the slice of it that this rank owns, or where
  // nothing is shared all of it.
  struct Sum {
    parallel::Group ranks;
    void* values = nullptr;
    void* residual = nullptr;
    int64_t count = 0;
  };

  // `compute` outlives this; sums run beside it.
  CodedSums(parallel::Communicator& ranks, const Stream& compute, DType wide);

  // Of bucket `bucket` of a group with sharing().coded, after allocate() of its store.
  Sum sum_of(const ParameterGroup& group, size_t bucket) const;
  // Before the first enqueue().
  void add(const Sum& sum);
  // After the last add(). Errors: out_of_memory.
  void allocate();
  // Memory of allocate() for all buckets of a store's groups.
  static size_t bytes(const ParameterStore& store);
  size_t sums() const noexcept { return sums_.size(); }

  // What enqueue(i) starts: the exchange of parts and the gather of their sums.
  std::vector<parallel::Collective> collectives(size_t i) const;
  // Behind what `from` holds, and behind `before`. Returns the last collective.
  parallel::Ticket enqueue(size_t i, const Stream& from, parallel::Ticket before);
  // The computation goes on behind the sums that were enqueued.
  void join();

  // Collective, between steps: residual = the sum of what all ranks hold, on each of them, as a
  // checkpoint has it. keep_own_parts() must follow before the next step.
  void add_up_residuals();
  // Of such a sum, which all ranks hold: the own part stays, the others are zero.
  void keep_own_parts();

 private:
  int position(const Sum& sum) const { return sum.ranks.position(ranks_.rank()); }
  parallel::Collective whole(const Sum& sum) const;

  parallel::Communicator& ranks_;
  const Stream& compute_;
  const DType wide_;
  std::vector<Sum> sums_;
  Buffer sent_, received_;  // used by one sum after the other
  Stream stream_;
  Event begin_, end_;
};

}  // namespace saturate::train
