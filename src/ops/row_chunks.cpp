// SPDX-License-Identifier: Apache-2.0
#include "ops/row_chunks.h"

#include <algorithm>

namespace saturate::ops {

std::array<RowChunk, 2> row_chunks(int64_t rows, int64_t parts, int64_t part) {
  const int64_t chunk = rows / (2 * parts);
  const auto numbered = [&](int64_t number) {
    return RowChunk{
        .first = number * chunk, .rows = chunk, .padding = std::min(number * chunk, kChunkPadding)};
  };
  return {numbered(part), numbered(2 * parts - 1 - part)};
}

void chunk_offsets(const int32_t* cu, int64_t sequences, const std::array<RowChunk, 2>& chunks,
                   int32_t* out) {
  for (const RowChunk& c : chunks) {
    const int64_t end = c.first + c.rows;
    // The sequence that the first row belongs to begins before the chunk, or with it. Those before
    // it have no queries here.
    int64_t first = 0;
    while (first + 1 < sequences && cu[first + 1] <= c.first) ++first;
    const bool empty = cu[sequences] <= c.first;
    const int64_t before = empty ? 0 : (c.first - cu[first]) % kChunkPadding;
    for (int64_t s = 0; s <= sequences; ++s) {
      const int64_t query = s <= first || empty ? -before : std::min<int64_t>(cu[s], end) - c.first;
      out[s] = static_cast<int32_t>(c.padding + query);
      out[sequences + 1 + s] = static_cast<int32_t>(std::min<int64_t>(cu[s], end));
    }
    out += 2 * (sequences + 1);
  }
}

}  // namespace saturate::ops
