// SPDX-License-Identifier: Apache-2.0
#include "data/token_cache.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>

#include "base/error.h"
#include "data/token_cache_format.h"
#include "data/token_cache_state.h"

namespace saturate::data {
namespace {

[[noreturn]] void fail(const std::string& path, const char* what) {
  throw Error(Errc::io, "token cache",
              fmt::format("{}: {}; delete the file, it is made again from the corpus", path, what));
}

}  // namespace

struct TokenCache::Entry : CacheEntry {};

WholeCache::WholeCache(const std::string& path, uint64_t key) : file(path) {
  CacheTrailer h;
  if (file.bytes() < sizeof h) fail(path, "is too short for a token cache");
  std::memcpy(&h, file.data() + file.bytes() - sizeof h, sizeof h);
  if (h.magic != kCacheMagic) fail(path, "is not a token cache");
  if (h.version != kCacheVersion) fail(path, "is of another version");
  if (h.checksum != XXH3_64bits(&h, offsetof(CacheTrailer, checksum)))
    fail(path, "has a damaged trailer");
  if (h.key != key) fail(path, "is stale: corpus, tokenizer or length limits have changed");
  const auto bytes = static_cast<int64_t>(file.bytes() - sizeof h);
  const int64_t pairs = h.stats.counts.kept;
  // The two bounds come first: they keep the sum below from overflowing.
  if ((h.id_bytes != 2 && h.id_bytes != 4) || h.tokens < 0 || h.tokens > bytes || pairs < 1 ||
      pairs > bytes || h.head.counts.kept < 1 || h.head.counts.kept > pairs ||
      cache_index_offset(h.tokens, h.id_bytes) + pairs * static_cast<int64_t>(sizeof(CacheEntry)) !=
          bytes)
    fail(path, "is truncated or damaged");
  head = h.head;
  stats = h.stats;
  id_bytes = h.id_bytes;
  tokens = h.tokens;
  index_offset = cache_index_offset(tokens, id_bytes);
}

ReadAt::~ReadAt() {
  if (fd_ >= 0) ::close(fd_);
}

void ReadAt::open(const std::string& path) {
  path_ = path;
  fd_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd_ < 0) fail(path, std::strerror(errno));
}

void ReadAt::read(void* dst, size_t bytes, int64_t at) const {
  auto* to = static_cast<char*>(dst);
  while (bytes > 0) {
    const ssize_t n = ::pread(fd_, to, bytes, at);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) fail(path_, n < 0 ? std::strerror(errno) : "became shorter");
    to += n;
    at += n;
    bytes -= static_cast<size_t>(n);
  }
}

TokenCache::TokenCache(std::shared_ptr<State> state) : state_(std::move(state)) {}

TokenCache::TokenCache(const std::string& path, uint64_t key) : state_(std::make_shared<State>()) {
  State& s = *state_;
  s.path = path;
  s.owned_whole = std::make_unique<WholeCache>(path, key);
  s.head = s.owned_whole->head;
  s.continues = s.head.counts.kept < s.owned_whole->stats.counts.kept;
  s.head_known = true;
  s.bad.count = s.owned_whole->stats.counts.bad;
  s.whole = s.owned_whole.get();
}

const CacheStats& TokenCache::head() const noexcept { return state_->head; }
bool TokenCache::continues_after_head() const noexcept { return state_->continues; }
const std::string& TokenCache::path() const noexcept { return state_->path; }

const CacheStats* TokenCache::whole() const {
  if (state_->failed) {
    const std::lock_guard lock(state_->mutex);
    std::rethrow_exception(state_->failure);
  }
  const WholeCache* whole = state_->whole;
  return whole != nullptr ? &whole->stats : nullptr;
}

const CacheStats& TokenCache::stats() const {
  if (const WholeCache* whole = state_->whole) return whole->stats;
  state_->await([this] { return state_->whole != nullptr; }, [] {});
  return state_->whole.load()->stats;
}

const BadLines& TokenCache::bad_lines() const {
  stats();
  return state_->bad;
}

int64_t TokenCache::await_pairs(int64_t pairs) const {
  State& s = *state_;
  if (s.pairs < pairs && s.whole == nullptr)
    s.await([&] { return s.pairs >= pairs || s.whole != nullptr; }, [] {});
  if (const WholeCache* whole = s.whole) return std::min(pairs, whole->stats.counts.kept);
  return pairs;
}

int64_t TokenCache::await_tokens(int64_t tokens) const {
  State& s = *state_;
  if (s.tokens < tokens && s.whole == nullptr)
    s.await([&] { return s.tokens >= tokens || s.whole != nullptr; }, [] {});
  if (const WholeCache* whole = s.whole) return std::min(tokens, whole->tokens);
  return tokens;
}

void TokenCache::stop_waiting() const noexcept {
  {
    const std::lock_guard lock(state_->mutex);
    state_->waits_end = true;
  }
  state_->changed.notify_all();
}

TokenCache::Entry TokenCache::entry(int64_t pair) const {
  Entry e;
  uint64_t tokens = 0;
  if (const WholeCache* whole = state_->whole) {
    SAT_ASSERT(pair >= 0 && pair < whole->stats.counts.kept);
    std::memcpy(
        static_cast<CacheEntry*>(&e),
        whole->file.data() + whole->index_offset + pair * static_cast<int64_t>(sizeof(CacheEntry)),
        sizeof(CacheEntry));
    tokens = static_cast<uint64_t>(whole->tokens);
  } else {
    SAT_ASSERT(pair >= 0 && pair < state_->pairs);
    state_->index.read(static_cast<CacheEntry*>(&e), sizeof(CacheEntry),
                       pair * static_cast<int64_t>(sizeof(CacheEntry)));
    tokens = static_cast<uint64_t>(state_->tokens.load());
  }
  if (e.begin > tokens || uint64_t{e.source} + e.target > tokens - e.begin)
    fail(path(), "has a damaged index");
  return e;
}

PairLengths TokenCache::lengths(int64_t pair) const {
  const Entry e = entry(pair);
  return {e.source, e.target};
}

namespace {

// False for an id outside the vocabulary.
template <class Id>
bool widen(const Id* ids, int64_t count, int64_t vocab, int32_t* dst) {
  bool inside = true;
  for (int64_t i = 0; i < count; ++i) {
    dst[i] = static_cast<int32_t>(ids[i]);
    inside &= dst[i] >= 0 && dst[i] < vocab;
  }
  return inside;
}

template <class Id>
bool read_ids(const ReadAt& file, int64_t first, int64_t count, int64_t vocab, int32_t* dst) {
  constexpr auto kWidth = static_cast<int64_t>(sizeof(Id));
  std::array<Id, 2048> block;
  bool inside = true;
  for (int64_t done = 0; done < count;) {
    const int64_t n = std::min<int64_t>(std::ssize(block), count - done);
    file.read(block.data(), static_cast<size_t>(n * kWidth), (first + done) * kWidth);
    inside &= widen(block.data(), n, vocab, dst + done);
    done += n;
  }
  return inside;
}

}  // namespace

void TokenCache::copy(int64_t first, int64_t count, int64_t vocab, int32_t* dst) const {
  if (const WholeCache* whole = state_->whole) {
    SAT_ASSERT(first >= 0 && count >= 0 && first <= whole->tokens - count);
    const unsigned char* ids = whole->file.data() + first * whole->id_bytes;
    if (whole->id_bytes == 2 ? widen(reinterpret_cast<const uint16_t*>(ids), count, vocab, dst)
                             : widen(reinterpret_cast<const uint32_t*>(ids), count, vocab, dst))
      return;
    fail(path(), "has an id outside the vocabulary");
  }
  SAT_ASSERT(first >= 0 && count >= 0 && first <= state_->tokens - count);
  if (state_->id_bytes == 2 ? read_ids<uint16_t>(state_->ids, first, count, vocab, dst)
                            : read_ids<uint32_t>(state_->ids, first, count, vocab, dst))
    return;
  fail(path(), "has an id outside the vocabulary");
}

void TokenCache::read_source(int64_t pair, int64_t first, int64_t count, int32_t* dst) const {
  const Entry e = entry(pair);
  if (first + count > e.source) fail(path(), "has a damaged index");
  copy(static_cast<int64_t>(e.begin) + first, count, head().source_vocab, dst);
}

void TokenCache::read_target(int64_t pair, int64_t first, int64_t count, int32_t* dst) const {
  const Entry e = entry(pair);
  if (first + count > e.target) fail(path(), "has a damaged index");
  copy(static_cast<int64_t>(e.begin) + e.source + first, count, head().target_vocab, dst);
}

void TokenCache::read_stream(int64_t first, int64_t count, int32_t* dst) const {
  if (await_tokens(first + count) < first + count) fail(path(), "has a damaged index");
  copy(first, count, head().target_vocab, dst);
}

}  // namespace saturate::data
