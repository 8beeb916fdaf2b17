// SPDX-License-Identifier: Apache-2.0
#include "data/token_cache.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <cstddef>
#include <cstring>

#include "base/error.h"
#include "data/token_cache_format.h"

namespace saturate::data {

struct TokenCache::Entry : CacheEntry {};

void TokenCache::fail(const char* what) const {
  throw Error(
      Errc::io, "token cache",
      fmt::format("{}: {}; delete the file, it is made again from the corpus", path_, what));
}

TokenCache::TokenCache(const std::string& path, uint64_t key) : path_(path), file_(path) {
  CacheTrailer h;
  if (file_.bytes() < sizeof h) fail("is too short for a token cache");
  std::memcpy(&h, file_.data() + file_.bytes() - sizeof h, sizeof h);
  if (h.magic != kCacheMagic) fail("is not a token cache");
  if (h.version != kCacheVersion) fail("is of another version");
  if (h.checksum != XXH3_64bits(&h, offsetof(CacheTrailer, checksum)))
    fail("has a damaged trailer");
  if (h.key != key) fail("is stale: corpus, tokenizer or length limits have changed");
  const auto bytes = static_cast<int64_t>(file_.bytes() - sizeof h);
  const int64_t pairs = h.stats.counts.kept;
  // The two bounds come first: they keep the sum below from overflowing.
  if ((h.id_bytes != 2 && h.id_bytes != 4) || h.tokens < 0 || h.tokens > bytes || pairs < 1 ||
      pairs > bytes ||
      cache_index_offset(h.tokens, h.id_bytes) + pairs * static_cast<int64_t>(sizeof(CacheEntry)) !=
          bytes)
    fail("is truncated or damaged");
  stats_ = h.stats;
  id_bytes_ = h.id_bytes;
  tokens_ = h.tokens;
  index_offset_ = cache_index_offset(tokens_, id_bytes_);
}

TokenCache::Entry TokenCache::entry(int64_t pair) const {
  SAT_ASSERT(pair >= 0 && pair < pairs());
  Entry e;
  std::memcpy(static_cast<CacheEntry*>(&e),
              file_.data() + index_offset_ + pair * static_cast<int64_t>(sizeof(CacheEntry)),
              sizeof(CacheEntry));
  const auto tokens = static_cast<uint64_t>(tokens_);
  if (e.begin > tokens || uint64_t{e.source} + e.target > tokens - e.begin)
    fail("has a damaged index");
  return e;
}

PairLengths TokenCache::lengths(int64_t pair) const {
  const Entry e = entry(pair);
  return {e.source, e.target};
}

void TokenCache::copy(int64_t first, int64_t count, int64_t vocab, int32_t* dst) const {
  SAT_ASSERT(first >= 0 && count >= 0 && first <= tokens_ - count);
  const unsigned char* ids = file_.data() + first * id_bytes_;
  bool outside = false;
  if (id_bytes_ == 2) {
    const auto* p = reinterpret_cast<const uint16_t*>(ids);
    for (int64_t i = 0; i < count; ++i) {
      dst[i] = p[i];
      outside |= dst[i] >= vocab;
    }
  } else {
    const auto* p = reinterpret_cast<const uint32_t*>(ids);
    for (int64_t i = 0; i < count; ++i) {
      dst[i] = static_cast<int32_t>(p[i]);
      outside |= dst[i] < 0 || dst[i] >= vocab;
    }
  }
  if (outside) fail("has an id outside the vocabulary");
}

void TokenCache::read_source(int64_t pair, int64_t first, int64_t count, int32_t* dst) const {
  const Entry e = entry(pair);
  if (first + count > e.source) fail("has a damaged index");
  copy(static_cast<int64_t>(e.begin) + first, count, stats_.source_vocab, dst);
}

void TokenCache::read_target(int64_t pair, int64_t first, int64_t count, int32_t* dst) const {
  const Entry e = entry(pair);
  if (first + count > e.target) fail("has a damaged index");
  copy(static_cast<int64_t>(e.begin) + e.source + first, count, stats_.target_vocab, dst);
}

void TokenCache::read_stream(int64_t first, int64_t count, int32_t* dst) const {
  if (first + count > tokens_) fail("has a damaged index");
  copy(first, count, stats_.target_vocab, dst);
}

}  // namespace saturate::data
