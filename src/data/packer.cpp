// SPDX-License-Identifier: Apache-2.0
#include "data/packer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/error.h"
#include "data/permutation.h"

namespace saturate::data {
namespace {

constexpr size_t kPoolItems = 128;
constexpr size_t kNone = ~size_t{0};

bool fits(const PackedItem& item, const BatchShape& left) {
  return item.source <= left.source_rows && item.target <= left.target_rows && left.sequences > 0;
}

// As if the shape were the rows that tokens may take.
PackerOptions without_padding(PackerOptions options) {
  options.shape.source_rows -= std::exchange(options.source_padding, 0);
  options.shape.target_rows -= std::exchange(options.target_padding, 0);
  return options;
}

[[noreturn]] void bad_state() {
  throw Error(
      Errc::invalid_argument, "resume",
      "the saved position in the data does not belong to this corpus; give the same corpus, "
      "tokenizer and batch shape, or start a new run");
}

}  // namespace

Packer::Packer(const TokenCache& cache, const PackerOptions& options, const PackerState& state)
    : cache_(cache),
      options_(without_padding(options)),
      order_(cache, options.order, options.unit, options.shape.max_target, options.seed),
      batches_(state.batches),
      epoch_(state.epoch),
      position_(state.position),
      pool_(state.carried.begin(), state.carried.end()) {
  const BatchShape& s = options_.shape;
  const bool monolingual = cache.head().monolingual != 0;
  if (monolingual != (s.source_rows == 0) || (!monolingual && options.unit == PackUnit::stream))
    throw Error(Errc::invalid_argument, "batch",
                monolingual ? "a language model's corpus needs a batch shape without source rows"
                            : "a parallel corpus needs source rows and whole sentences");
  if (s.max_target < 1 || s.target_rows < s.max_target || s.source_rows < s.max_source ||
      s.sequences < 1)
    throw Error(
        Errc::invalid_argument, "batch",
        fmt::format("{} source rows, {} target rows and {} sequences cannot hold the longest "
                    "sentence of {} / {} tokens; raise the rows or lower the lengths",
                    s.source_rows, s.target_rows, s.sequences, s.max_source, s.max_target));
  if (order_.first_block() < 1)
    throw Error(Errc::invalid_argument, "batch",
                fmt::format("the corpus has {} tokens, less than one sequence of {} and its last "
                            "label; give more text or a shorter length",
                            cache.head().target_tokens, s.max_target));
  if (epoch_ < 0 || batches_ < 0 || position_ < 0) bad_state();
  if (position_ > 0 && order_.at(epoch_, position_ - 1) < 0) bad_state();
  for (PackedItem& item : pool_) {
    if (!order_.has(item.index) || item.first < 0 || item.epoch < 0) bad_state();
    complete(item);
    if (item.target < 1) bad_state();
  }
}

// Rows of an item from its index and first token.
void Packer::complete(PackedItem& item) const {
  const BatchShape& s = options_.shape;
  if (options_.unit == PackUnit::stream) {
    item.first = item.index * s.max_target;
    item.target = s.max_target;
    return;
  }
  const PairLengths lengths = cache_.lengths(item.index);
  if (cache_.head().monolingual != 0) {
    item.target = std::min(s.max_target, lengths.target - 1 - item.first);
    return;
  }
  if (lengths.source > s.max_source || lengths.target > s.max_target)
    throw Error(
        Errc::invalid_argument, "batch",
        fmt::format("sentence pair {} has {} source and {} target tokens, the batch allows {} "
                    "and {}; filter the corpus to the same limits",
                    item.index, lengths.source, lengths.target, s.max_source, s.max_target));
  item.source = lengths.source;
  item.target = lengths.target;
}

// Moves one more unit of the epoch's order into the pool; false after the last epoch.
bool Packer::draw() {
  const auto ended = [this] { return options_.epochs > 0 && epoch_ >= options_.epochs; };
  if (ended()) return false;
  PackedItem item;
  item.index = order_.at(epoch_, position_);
  if (item.index < 0) {
    position_ = 0;
    ++epoch_;
    if (ended()) return false;
    item.index = order_.at(epoch_, position_);
  }
  item.epoch = epoch_;
  ++position_;
  do {
    complete(item);
    if (item.target > 0) pool_.push_back(item);
    item.first += options_.shape.max_target;
  } while (options_.unit == PackUnit::sentences && cache_.head().monolingual != 0 &&
           item.target > 0);
  return true;
}

// Position in the pool of the item to take next, or kNone if none fits.
size_t Packer::choose(const BatchShape& left) const {
  const BatchShape& s = options_.shape;
  const bool in_order =
      options_.order == PackOrder::sequential || left.target_rows > s.target_rows / 4;
  if (in_order && fits(pool_.front(), left)) return 0;
  // Prefer what leaves source and target rows in the shape's proportion, then what leaves few.
  const double rate = static_cast<double>(s.source_rows) / static_cast<double>(s.target_rows);
  size_t best = kNone;
  double best_cost = 0;
  for (size_t i = 0; i < pool_.size(); ++i) {
    if (!fits(pool_[i], left)) continue;
    const double source = static_cast<double>(left.source_rows - pool_[i].source);
    const double target = rate * static_cast<double>(left.target_rows - pool_[i].target);
    const double cost = rate == 0 ? -static_cast<double>(pool_[i].target)
                                  : std::abs(source - target) + 0.1 * (source + target);
    if (best == kNone || cost < best_cost) {
      best = i;
      best_cost = cost;
    }
  }
  return best;
}

// Items in order while (sentences) x (longest) fits both budgets.
void Packer::take_padded(std::vector<PackedItem>& items) {
  const BatchShape& s = options_.shape;
  PackedItem longest;
  for (;;) {
    while (pool_.size() < kPoolItems && draw()) continue;
    if (pool_.empty()) return;
    const PackedItem item = pool_.front();
    const auto count = static_cast<int64_t>(items.size()) + 1;
    longest.source = std::max(longest.source, item.source);
    longest.target = std::max(longest.target, item.target);
    if (count > s.sequences || count * longest.source > s.source_rows ||
        count * longest.target > s.target_rows) {
      return;
    }
    pool_.pop_front();
    items.push_back(item);
  }
}

bool Packer::next(std::vector<PackedItem>& items) {
  items.clear();
  if (options_.padding == Padding::to_longest) {
    take_padded(items);
    batches_ += items.empty() ? 0 : 1;
    return !items.empty();
  }
  BatchShape left = options_.shape;
  for (;;) {
    while (pool_.size() < kPoolItems && draw()) continue;
    if (pool_.empty()) break;
    const size_t at = choose(left);
    if (at == kNone) break;
    const PackedItem item = pool_[at];
    pool_.erase(pool_.begin() + static_cast<std::ptrdiff_t>(at));
    left.source_rows -= item.source;
    left.target_rows -= item.target;
    --left.sequences;
    items.push_back(item);
  }
  if (items.empty()) return false;
  ++batches_;
  return true;
}

PackerState Packer::state() const {
  return {batches_, epoch_, position_, {pool_.begin(), pool_.end()}};
}

BatchShape suggest_shape(const TokenCache& cache, int64_t target_rows, int64_t max_source,
                         int64_t max_target, PackUnit unit) {
  const auto round_up = [](int64_t n, int64_t unit_size) {
    return (n + unit_size - 1) / unit_size * unit_size;
  };
  const CacheStats& stats = cache.head();
  const bool monolingual = stats.monolingual != 0;
  if (max_target < 1 || max_target > target_rows || (!monolingual && max_source < 1))
    throw Error(
        Errc::invalid_argument, "batch",
        fmt::format("a batch of {} target tokens cannot hold a sentence of {}; raise the batch "
                    "or lower the maximum length",
                    target_rows, max_target));
  BatchShape s;
  s.max_target = max_target;
  if (unit == PackUnit::stream) {
    s.target_rows = round_up(target_rows, max_target);
    s.sequences = s.target_rows / max_target;
    return s;
  }
  s.target_rows = round_up(target_rows, 8);
  // Sequences a batch holds on average, from a sample of lengths (pieces of documents are not
  // counted in the trailer).
  constexpr int64_t kSample = 4096;
  const int64_t pairs = stats.counts.kept;
  const Permutation order(pairs, 0, 0);
  double rows = 0, sequences = 0;
  for (int64_t i = 0; i < std::min(kSample, pairs); ++i) {
    const int64_t length = cache.lengths(order(i)).target - (monolingual ? 1 : 0);
    rows += static_cast<double>(length);
    sequences += static_cast<double>(monolingual ? round_up(length, max_target) / max_target : 1);
  }
  const double mean = static_cast<double>(s.target_rows) * sequences / std::max(rows, 1.0);
  // The number of sequences in a fixed number of rows spreads by cv * sqrt(mean), where cv, the
  // spread of lengths over their mean, is below 0.75 for text: four of those.
  s.sequences = std::min(s.target_rows, round_up(std::llround(mean + 3 * std::sqrt(mean)) + 1, 8));
  if (!monolingual) {
    const double rate =
        static_cast<double>(stats.source_tokens) / static_cast<double>(stats.target_tokens);
    s.max_source = max_source;
    s.source_rows = std::max(round_up(std::llround(rate * static_cast<double>(s.target_rows)), 8),
                             round_up(max_source, 8));
  }
  return s;
}

}  // namespace saturate::data
