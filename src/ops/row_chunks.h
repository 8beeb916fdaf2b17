// SPDX-License-Identifier: Apache-2.0
// A micro-batch's rows in chunks, of which a context-parallel rank has two (Tape::set_chunks): one
// from the beginning and one from the end, so that under a causal mask all ranks see as many keys.
#pragma once
#include <array>
#include <cstdint>

namespace saturate::ops {

// Rows of zeros that attention has around a chunk, as many on each rank.
constexpr int64_t kChunkPadding = 16;

// One of a rank's two chunks: rows [first, first + rows) of the micro-batch. Attention has `padding`
// rows before them, of which those up to the last multiple of 16 of its sequence belong to the
// first sequence: masks of dropout are cut there (kernels/attention/dropout.h).
struct RowChunk {
  int64_t first = 0, rows = 0, padding = 0;
  int64_t padded() const { return kChunkPadding + rows; }
};
// Of rank `part` of `parts`, which share `rows` rows. 2 * parts divides them.
std::array<RowChunk, 2> row_chunks(int64_t rows, int64_t parts, int64_t part);

// Sequences as they lie in a rank's two chunks: for each chunk (sequences + 1) offsets of their queries
// in the padded chunk, then as many of the keys that are not behind the chunk's last row, in the rows
// of the micro-batch. So the last query of a sequence stands at its last key.
constexpr int64_t chunk_offsets_words(int64_t sequences) { return 4 * (sequences + 1); }
// cu (sequences + 1): where sequences begin, as in data/batch.h. All memory is the host's.
void chunk_offsets(const int32_t* cu, int64_t sequences, const std::array<RowChunk, 2>& chunks,
                   int32_t* out);

}  // namespace saturate::ops
