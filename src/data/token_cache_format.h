// SPDX-License-Identifier: Apache-2.0
// Bytes of a token cache file, shared by its writer and its reader. Host byte order: a cache is
// made and used on one machine.
#pragma once
#include <array>
#include <cstdint>
#include <type_traits>

#include "data/token_cache.h"

namespace saturate::data {

constexpr std::array<char, 8> kCacheMagic{'S', 'A', 'T', 'T', 'O', 'K', 'E', 'N'};
constexpr uint32_t kCacheVersion = 3;

struct CacheTrailer {
  std::array<char, 8> magic = kCacheMagic;
  uint32_t version = kCacheVersion;
  uint32_t id_bytes = 0;  // 2 or 4
  uint64_t key = 0;       // of tokenizers, inputs and filter: decides whether the cache is stale
  int64_t tokens = 0;
  CacheStats head;  // of the pairs up to the head's end
  CacheStats stats;
  uint64_t checksum = 0;  // XXH3 of all bytes above
};
static_assert(sizeof(CacheTrailer) % 8 == 0);
static_assert(std::has_unique_object_representations_v<CacheTrailer>,
              "no padding under the checksum");

// The file: ids from byte 0, the index from the next multiple of 8, the trailer at the end (its
// counts are known last).
constexpr int64_t cache_index_offset(int64_t tokens, int64_t id_bytes) {
  return (tokens * id_bytes + 7) / 8 * 8;
}

struct CacheEntry {
  uint64_t begin = 0;  // token where the source starts; the target follows it
  uint32_t source = 0, target = 0;
};

}  // namespace saturate::data
