// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "data/batch.h"
#include "data/packer.h"
#include "data/token_cache.h"

namespace saturate::data {

// A batch that a loader delivered, valid until its release.
struct LoadedBatch {
  const int32_t* words = nullptr;  // one of the slots given
  int slot = 0;
  BatchStats stats;
};

// Packs and fills batches ahead, in worker threads, into memory of the caller (pinned, for copies
// to a GPU). Of the one global sequence of batches, rank r of N gets r, r + N, r + 2N, ... At the
// end of a finite sequence all ranks get the same number of batches, some of them without rows.
// Threads: all functions from one thread. Errors: next() throws what packing or filling threw,
// or waiting for the cache. The destructor ends all waiting for the cache.
class BatchLoader {
 public:
  struct Setup {
    PackerOptions packing;
    int rank = 0, ranks = 1;
    int threads = 1;
    std::vector<int32_t*>
        slots;          // each BatchLayout(packing.shape).words long; at least 2 to overlap
    PackerState state;  // where to go on
  };
  BatchLoader(const TokenCache& cache, const Setup& setup);
  ~BatchLoader();

  // False at the end. Several batches may be held; all slots held at once is the caller's bug.
  bool next(LoadedBatch& batch);
  void release();  // the oldest batch held: its slot will be overwritten
  // The state after the last batch given, equal on all ranks: a run resumed from it gives the
  // batches that would have come next.
  PackerState state() const;
  int64_t waited_ns() const noexcept;  // time next() waited for data, since the start

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace saturate::data
