// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <limits>
#include <memory>
#include <string>

#include "data/corpus.h"

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

// What is known of a cache, or of its head; part of its file's trailer.
struct CacheStats {
  FilterCounts counts;
  int64_t source_tokens = 0, target_tokens = 0;
  int64_t longest_source = 0, longest_target = 0;
  int64_t source_vocab = 0, target_vocab = 0;
  int32_t source_eos = 0, target_eos = 0, target_pad = 0;
  int32_t monolingual = 0;
};

// A tokenised corpus on disk, read-only: any pair in O(1), in the memory of the system's page
// cache. Each side of a pair ends with its end-of-sentence id; a language model has targets alone,
// and its documents lie one after the other.
//
// A cache may still be in the making (token_cache_builder.h): pairs appear in order, and what asks
// for later ones waits. What must be known before the first batch is a function of the head, the
// part in front that holds kHeadTokens, or all of a smaller corpus: so it depends on no timing.
//
// File: ids (u16 or u32; source then target of each pair), 16 bytes per pair, trailer. Opening
// checks trailer and sizes, reading checks each index entry, so a damaged or hostile file gives
// Error{io}, never a crash. All functions may be called from several threads. Errors of all that
// waits: those of making the cache; Interrupted.
class TokenCache {
 public:
  // About a second's work to tokenise, and several times the examples' corpora.
  static constexpr int64_t kHeadTokens = int64_t{1} << 21;
  static constexpr int64_t kAll = std::numeric_limits<int64_t>::max();

  // A whole one. Errors: io. `key` as the builder wrote it; another key is an error that says
  // "stale".
  TokenCache(const std::string& path, uint64_t key);

  // Statistics of the head; those of the whole corpus when it has no more.
  const CacheStats& head() const noexcept;
  bool continues_after_head() const noexcept;
  // Of the whole corpus; null as long as that is not known. Throws what making the cache threw.
  const CacheStats* whole() const;
  // The same, waited for.
  const CacheStats& stats() const;
  int64_t pairs() const { return stats().counts.kept; }
  // Waits until so many pairs, or tokens, can be read or are known not to be there; returns how
  // many there are, but no more than asked.
  int64_t await_pairs(int64_t pairs) const;
  int64_t await_tokens(int64_t tokens) const;
  // From now on nothing waits: Interrupted instead. For the end of a run.
  void stop_waiting() const noexcept;

  // Of pairs awaited before.
  PairLengths lengths(int64_t pair) const;
  // Tokens [first, first + count) of one side to dst. Errors: io if they are not there.
  void read_source(int64_t pair, int64_t first, int64_t count, int32_t* dst) const;
  void read_target(int64_t pair, int64_t first, int64_t count, int32_t* dst) const;
  // Tokens of all documents as one sequence (language model).
  void read_stream(int64_t first, int64_t count, int32_t* dst) const;
  const std::string& path() const noexcept;
  // The lines left out, once the cache is whole; one that was opened knows their number alone.
  const BadLines& bad_lines() const;

 private:
  friend class TokenCacheBuild;
  struct State;
  explicit TokenCache(std::shared_ptr<State> state);
  struct Entry;
  Entry entry(int64_t pair) const;
  void copy(int64_t first, int64_t count, int64_t vocab, int32_t* dst) const;
  std::shared_ptr<State> state_;  // shared with the thread that makes it
};

}  // namespace saturate::data
