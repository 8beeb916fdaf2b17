// SPDX-License-Identifier: Apache-2.0
#include "data/batch_loader.h"

#include "base/error.h"
#include "data/batch_fill.h"
#include "data/ordered_workers.h"

namespace saturate::data {
namespace {

struct Slot {
  Slot(const TokenCache& cache, const PackerOptions& options, int32_t* memory)
      : filler(cache, options), words(memory) {}
  BatchFiller filler;
  int32_t* words;
  std::vector<PackedItem> items;
  BatchStats stats;
  PackerState after;
};

}  // namespace

struct BatchLoader::Impl {
  Impl(const TokenCache& cache_in, const Setup& setup)
      : cache(cache_in),
        rank(setup.rank),
        ranks(setup.ranks),
        packer(cache_in, setup.packing, setup.state),
        state(packer.state()) {
    SAT_ASSERT(rank >= 0 && rank < ranks && !setup.slots.empty());
    for (int32_t* words : setup.slots) slots.emplace_back(cache_in, setup.packing, words);
    workers = std::make_unique<OrderedWorkers>(
        setup.threads, static_cast<int>(slots.size()),
        [this](int slot) { return plan(slots[static_cast<size_t>(slot)]); },
        [this](int slot) {
          Slot& s = slots[static_cast<size_t>(slot)];
          s.stats = s.filler.fill(s.items, s.words);
        });
  }

  // A thread that waits for the cache would keep the workers from ending.
  ~Impl() { cache.stop_waiting(); }

  // Packs one batch for each rank and keeps ours: packing costs little beside filling.
  bool plan(Slot& slot) {
    std::vector<PackedItem> items;
    slot.items.clear();
    for (int r = 0; r < ranks; ++r) {
      if (!packer.next(items)) {
        if (r == 0) return false;
        break;
      }
      if (r == rank) slot.items.swap(items);
    }
    slot.after = packer.state();
    return true;
  }

  const TokenCache& cache;
  const int rank, ranks;
  Packer packer;  // used by plan alone
  PackerState state;
  std::vector<Slot> slots;
  std::unique_ptr<OrderedWorkers> workers;  // last: its threads use all of the above
};

BatchLoader::BatchLoader(const TokenCache& cache, const Setup& setup)
    : impl_(std::make_unique<Impl>(cache, setup)) {}
BatchLoader::~BatchLoader() = default;

bool BatchLoader::next(LoadedBatch& batch) {
  const int slot = impl_->workers->acquire();
  if (slot < 0) return false;
  Slot& s = impl_->slots[static_cast<size_t>(slot)];
  batch = {s.words, slot, s.stats};
  impl_->state = s.after;
  return true;
}

void BatchLoader::release() { impl_->workers->release(); }
PackerState BatchLoader::state() const { return impl_->state; }
int64_t BatchLoader::waited_ns() const noexcept { return impl_->workers->waited_ns(); }

}  // namespace saturate::data
