// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <string>

#include "data/mapped_file.h"

namespace saturate::data {

// How many pairs were read, and what became of them.
struct FilterCounts {
  int64_t read = 0, kept = 0;
  int64_t empty = 0;     // a side without tokens
  int64_t too_long = 0;  // more tokens than allowed on a side
  int64_t ratio = 0;     // one side too long for the other
  int64_t bad = 0;       // no text, or without the fields of the format; not among those read
  friend bool operator==(const FilterCounts&, const FilterCounts&) = default;
};

struct PairLengths {
  int64_t source = 0, target = 0;  // tokens, end-of-sentence included
};

// What is known of a whole cache; part of its file's trailer.
struct CacheStats {
  FilterCounts counts;
  int64_t source_tokens = 0, target_tokens = 0;
  int64_t longest_source = 0, longest_target = 0;
  int64_t source_vocab = 0, target_vocab = 0;
  int32_t source_eos = 0, target_eos = 0, target_pad = 0;
  int32_t monolingual = 0;
};

// A tokenised corpus on disk, mapped read-only: any pair in O(1), in the memory of the system's
// page cache. Each side of a pair ends with its end-of-sentence id; a language model has targets
// alone, and its documents lie one after the other.
//
// File: ids (u16 or u32; source then target of each pair), 16 bytes per pair, trailer. Opening
// checks trailer and sizes, reading checks each index entry, so a damaged or hostile file gives
// Error{io}, never a crash. All functions may be called from several threads.
class TokenCache {
 public:
  // Errors: io. `key` as build_token_cache wrote it; another key is an error that says "stale".
  TokenCache(const std::string& path, uint64_t key);
  TokenCache(TokenCache&&) noexcept = default;

  int64_t pairs() const noexcept { return stats_.counts.kept; }
  const CacheStats& stats() const noexcept { return stats_; }
  PairLengths lengths(int64_t pair) const;
  // Tokens [first, first + count) of one side to dst. Errors: io if they are not there.
  void read_source(int64_t pair, int64_t first, int64_t count, int32_t* dst) const;
  void read_target(int64_t pair, int64_t first, int64_t count, int32_t* dst) const;
  // Tokens of all documents as one sequence (language model).
  void read_stream(int64_t first, int64_t count, int32_t* dst) const;
  const std::string& path() const noexcept { return path_; }

 private:
  struct Entry;
  Entry entry(int64_t pair) const;
  void copy(int64_t first, int64_t count, int64_t vocab, int32_t* dst) const;
  [[noreturn]] void fail(const char* what) const;

  std::string path_;
  MappedFile file_;
  CacheStats stats_;
  int64_t id_bytes_ = 0, tokens_ = 0, index_offset_ = 0;
};

}  // namespace saturate::data
