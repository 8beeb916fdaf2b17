// SPDX-License-Identifier: Apache-2.0
#include "data/batch.h"

#include <initializer_list>

namespace saturate::data {

BatchLayout::BatchLayout(const BatchShape& s, int64_t chunks_of_rows)
    : shape(s), chunks(chunks_of_rows) {
  int64_t next = 0;
  const auto take = [&next](int64_t count) {
    const int64_t at = next;
    next += (count + 63) / 64 * 64;  // 256-byte alignment of every array
    return at;
  };
  const auto side = [&](SideLayout& l, int64_t rows) {
    l.ids = take(rows);
    l.positions = take(rows);
    l.cu = take(s.sequences + 1);
    l.order = take(rows);
    l.valid = take(1);
  };
  if (s.source_rows > 0) side(source, s.source_rows);
  side(target, s.target_rows);
  labels = take(s.target_rows);
  if (chunks > 0) {
    for (SideLayout* l : {&source, &target}) l->chunk_offsets = take(4 * (s.sequences + 1));
    chunk_labels = take(s.target_rows);
  }
  words = next;
}

}  // namespace saturate::data
