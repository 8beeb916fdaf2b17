// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <string>

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
};

enum class CacheOrigin : uint8_t { reused, built };

struct CacheReport {
  CacheOrigin origin = CacheOrigin::reused;
  BadLines bad;  // of a cache that was built; one reused knows their count alone
};

// Opens spec.path if it was made from the same files (path, size, time), tokenizers and filter;
// otherwise tokenises the corpus into it, in constant memory, and opens that. The bytes do not
// depend on the number of threads. Standard input is always read. One
// process builds at a time: with several ranks on a host, one builds while the others wait. Errors:
// those of the corpus; invalid_argument when no pair is left; io.
TokenCache open_or_build_token_cache(const TokenCacheSpec& spec, CacheReport* report = nullptr);

}  // namespace saturate::data
