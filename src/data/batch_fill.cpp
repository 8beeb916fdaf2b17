// SPDX-License-Identifier: Apache-2.0
#include "data/batch_fill.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"

namespace saturate::data {

BatchFiller::BatchFiller(const TokenCache& cache, const PackerOptions& options)
    : cache_(cache), unit_(options.unit), layout_(options.shape) {}

// Counting sort: stable, so the embedding gradient sums rows in a fixed order.
void BatchFiller::sort_by_id(const int32_t* ids, int64_t rows, int64_t vocab, int32_t* order) {
  next_.assign(static_cast<size_t>(vocab) + 1, 0);
  for (int64_t r = 0; r < rows; ++r) ++next_[static_cast<size_t>(ids[r]) + 1];
  std::partial_sum(next_.begin(), next_.end(), next_.begin());
  for (int64_t r = 0; r < rows; ++r)
    order[next_[static_cast<size_t>(ids[r])]++] = static_cast<int32_t>(r);
}

void BatchFiller::fill_target(const PackedItem& item, int32_t* ids, int32_t* labels) const {
  if (cache_.head().monolingual == 0) {
    cache_.read_target(item.index, 0, item.target, labels);
    ids[0] = cache_.head().target_pad;
    std::copy_n(labels, item.target - 1, ids + 1);
  } else if (unit_ == PackUnit::stream) {
    cache_.read_stream(item.first, item.target, ids);
    cache_.read_stream(item.first + 1, item.target, labels);
  } else {
    cache_.read_target(item.index, item.first, item.target, ids);
    cache_.read_target(item.index, item.first + 1, item.target, labels);
  }
}

BatchStats BatchFiller::fill(const std::vector<PackedItem>& items, int32_t* words) {
  const BatchShape& shape = layout_.shape;
  SAT_ASSERT(static_cast<int64_t>(items.size()) <= shape.sequences);
  std::fill_n(words, layout_.words, 0);
  std::fill_n(words + layout_.labels, shape.target_rows, -1);
  BatchStats stats;
  stats.sequences = static_cast<int64_t>(items.size());
  stats.epoch = items.empty() ? 0 : items.front().epoch;

  const auto place = [&](const SideLayout& side, int64_t& rows, int64_t sequence, int64_t length,
                         int64_t budget) {
    SAT_ASSERT(length <= budget - rows);
    const int64_t at = rows;
    std::iota(words + side.positions + at, words + side.positions + at + length, 0);
    rows += length;
    words[side.cu + sequence + 1] = static_cast<int32_t>(rows);
    return at;
  };
  for (int64_t i = 0; i < stats.sequences; ++i) {
    const PackedItem& item = items[static_cast<size_t>(i)];
    if (shape.source_rows > 0) {
      const int64_t at =
          place(layout_.source, stats.source_tokens, i, item.source, shape.source_rows);
      cache_.read_source(item.index, 0, item.source, words + layout_.source.ids + at);
    }
    const int64_t at =
        place(layout_.target, stats.target_tokens, i, item.target, shape.target_rows);
    fill_target(item, words + layout_.target.ids + at, words + layout_.labels + at);
  }
  const auto finish = [&](const SideLayout& side, int64_t rows, int64_t vocab) {
    std::fill(words + side.cu + stats.sequences + 1, words + side.cu + shape.sequences + 1,
              static_cast<int32_t>(rows));
    words[side.valid] = static_cast<int32_t>(rows);
    sort_by_id(words + side.ids, rows, vocab, words + side.order);
  };
  if (shape.source_rows > 0)
    finish(layout_.source, stats.source_tokens, cache_.head().source_vocab);
  finish(layout_.target, stats.target_tokens, cache_.head().target_vocab);
  return stats;
}

}  // namespace saturate::data
