// SPDX-License-Identifier: Apache-2.0
// Batches that are a function of their number, for tests in which ranks share them in many ways.
#pragma once
#include <algorithm>
#include <numeric>

#include "base/philox.h"
#include "data/batch.h"

namespace saturate::train {

// Three sentences a side, of lengths that differ from batch to batch; batch 2 has no labels.
inline void fill_numbered(const data::BatchLayout& layout, int32_t vocab, int64_t number,
                          int32_t* words) {
  std::fill_n(words, layout.words, 0);
  const auto side = [&](const data::SideLayout& l, int64_t rows, uint64_t seed) {
    int32_t row = 0;
    for (int32_t s = 0; s < layout.shape.sequences; ++s) {
      words[l.cu + s] = row;
      const int32_t length = 3 + static_cast<int32_t>((number + s) % 5);
      for (int32_t i = 0; i < length; ++i, ++row) {
        words[l.ids + row] =
            static_cast<int32_t>(philox4x32(seed, static_cast<uint64_t>(number), row).x[0] %
                                 static_cast<uint32_t>(vocab));
        words[l.positions + row] = i;
      }
    }
    std::fill(words + l.cu + layout.shape.sequences, words + l.cu + layout.shape.sequences + 1,
              row);
    int32_t* const order = words + l.order;
    std::iota(order, order + rows, 0);
    std::stable_sort(order, order + row,
                     [&](int32_t a, int32_t b) { return words[l.ids + a] < words[l.ids + b]; });
    words[l.valid] = row;
    return row;
  };
  if (layout.shape.source_rows > 0) side(layout.source, layout.shape.source_rows, 1);
  const int32_t rows = side(layout.target, layout.shape.target_rows, 2);
  for (int64_t i = 0; i < layout.shape.target_rows; ++i)
    words[layout.labels + i] =
        i < rows && number != 2 ? words[layout.target.ids + (i + 1) % rows] : -1;
}

}  // namespace saturate::train
