// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <functional>
#include <string>

#include "base/interrupt.h"
#include "data/corpus.h"
#include "data/token_cache.h"
#include "data/tokenizer.h"

namespace saturate::data {

// Which pairs are kept; lengths in tokens with the end-of-sentence. Not applied to language models,
// whose documents are cut to length later.
struct LengthFilter {
  int64_t max_source = 256, max_target = 256;
  double max_ratio = 0;  // longer side / shorter side; 0: any
};

struct TokenCacheSpec {
  CorpusSpec corpus;
  Tokenizer source, target;  // a language model uses target
  LengthFilter filter;
  std::string path;
  int threads = 1;  // beside the caller's
  int64_t head_tokens = TokenCache::kHeadTokens;
  // Checked by everything that waits for the cache.
  Interrupt interrupt = {};
  // Called some ten times a second, from the caller's thread, while a call here waits.
  std::function<void(int64_t lines_read)> progress = {};
};

enum class CacheOrigin : uint8_t { reused, built };

// Opens spec.path if it was made from the same files (path, size, time), tokenizers and filter.
// Otherwise a thread starts to tokenise the corpus into it, in constant memory, and this returns
// once the head is there. The bytes do not depend on the number of threads. The file gets its name
// when it is whole; a cache that is destroyed before leaves none. Standard input is always read.
// One process makes a cache at a time. Errors: those of the corpus; invalid_argument when no pair
// is left; io; Interrupted. What is found after the head reaches those who wait or ask for whole().
TokenCache open_or_start_token_cache(const TokenCacheSpec& spec, CacheOrigin* origin = nullptr);

// The same, and waits for the whole.
TokenCache open_or_build_token_cache(const TokenCacheSpec& spec, CacheOrigin* origin = nullptr);

}  // namespace saturate::data
