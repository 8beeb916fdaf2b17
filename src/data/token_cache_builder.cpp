// SPDX-License-Identifier: Apache-2.0
#include "data/token_cache_builder.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <xxhash.h>

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <fstream>

#include "base/counted.h"
#include "base/durable_file.h"
#include "base/error.h"
#include "data/ordered_workers.h"
#include "data/token_cache_format.h"
#include "data/token_cache_state.h"

namespace saturate::data {
namespace {

constexpr size_t kChunkPairs = 1024, kChunkBytes = size_t{1} << 20;  // of text, per slot
constexpr int64_t kNarrowVocab = 65536;                              // ids fit two bytes

uint64_t cache_key(const TokenCacheSpec& spec) {
  std::string text = fmt::format(
      "{}|{}|{}|{}|{}|{}|{}|{}|{}|{}|{}", kCacheVersion, static_cast<int>(spec.corpus.format),
      spec.corpus.source_key, spec.corpus.target_key, spec.corpus.text_key,
      spec.target.fingerprint(), spec.filter.max_source, spec.filter.max_target,
      spec.filter.max_ratio, spec.corpus.skip_bad_lines, spec.head_tokens);
  if (!spec.corpus.monolingual()) text += fmt::format("|{}", spec.source.fingerprint());
  for (const std::string& path : spec.corpus.paths) {
    struct stat info {};
    if (::stat(path.c_str(), &info) != 0) continue;  // opening the corpus reports it
    text += fmt::format("|{}:{}:{}.{}", std::filesystem::absolute(path).string(), info.st_size,
                        info.st_mtim.tv_sec, info.st_mtim.tv_nsec);
  }
  return XXH3_64bits(text.data(), text.size());
}

// What a worker makes of some lines; `begin` of the entries counts from the chunk's first token.
struct Chunk {
  std::vector<SentencePair> pairs;
  size_t used = 0;  // of pairs, whose strings are reused
  std::vector<int32_t> ids;
  std::vector<CacheEntry> entries;
  CacheStats stats;
};

bool read_chunk(Corpus& corpus, Chunk& chunk) {
  chunk.used = 0;
  for (size_t bytes = 0; chunk.used < kChunkPairs && bytes < kChunkBytes; ++chunk.used) {
    if (chunk.used == chunk.pairs.size()) chunk.pairs.emplace_back();
    SentencePair& pair = chunk.pairs[chunk.used];
    if (!corpus.next(pair)) break;
    bytes += pair.source.size() + pair.target.size();
  }
  return chunk.used > 0;
}

int64_t FilterCounts::*verdict(const TokenCacheSpec& spec, const CacheEntry& e) {
  const LengthFilter& filter = spec.filter;
  if (spec.corpus.format == CorpusFormat::stream)  // a line of a longer text
    return e.target > 0 ? &FilterCounts::kept : &FilterCounts::empty;
  if (e.target <= 1) return &FilterCounts::empty;
  if (spec.corpus.monolingual()) return &FilterCounts::kept;
  if (e.source <= 1) return &FilterCounts::empty;
  if (e.source > filter.max_source || e.target > filter.max_target) return &FilterCounts::too_long;
  const double longer = std::max(e.source, e.target), shorter = std::min(e.source, e.target);
  if (filter.max_ratio > 0 && longer > filter.max_ratio * shorter) return &FilterCounts::ratio;
  return &FilterCounts::kept;
}

void tokenize_chunk(const TokenCacheSpec& spec, Chunk& chunk) {
  chunk.ids.clear();
  chunk.entries.clear();
  chunk.stats = {};
  const bool monolingual = spec.corpus.monolingual();
  for (size_t i = 0; i < chunk.used; ++i) {
    const SentencePair& pair = chunk.pairs[i];
    const size_t begin = chunk.ids.size();
    CacheEntry e{begin, 0, 0};
    if (!monolingual) {
      spec.source.encode(pair.source, chunk.ids);
      chunk.ids.push_back(spec.source.eos_id());
      e.source = static_cast<uint32_t>(chunk.ids.size() - begin);
    }
    if (spec.corpus.format == CorpusFormat::stream) {
      spec.target.encode_text(pair.target, chunk.ids);
    } else {
      spec.target.encode(pair.target, chunk.ids);
    }
    if (pair.ends_document) chunk.ids.push_back(spec.target.eos_id());
    e.target = static_cast<uint32_t>(chunk.ids.size() - begin - e.source);
    const auto counter = verdict(spec, e);
    ++chunk.stats.counts.read;
    ++(chunk.stats.counts.*counter);
    if (counter != &FilterCounts::kept) {
      chunk.ids.resize(begin);
      continue;
    }
    chunk.entries.push_back(e);
    chunk.stats.source_tokens += e.source;
    chunk.stats.target_tokens += e.target;
    chunk.stats.longest_source = std::max<int64_t>(chunk.stats.longest_source, e.source);
    chunk.stats.longest_target = std::max<int64_t>(chunk.stats.longest_target, e.target);
  }
}

void add_stats(const CacheStats& from, CacheStats& to) {
  to.counts.read += from.counts.read;
  to.counts.kept += from.counts.kept;
  to.counts.empty += from.counts.empty;
  to.counts.too_long += from.counts.too_long;
  to.counts.ratio += from.counts.ratio;
  to.source_tokens += from.source_tokens;
  to.target_tokens += from.target_tokens;
  to.longest_source = std::max(to.longest_source, from.longest_source);
  to.longest_target = std::max(to.longest_target, from.longest_target);
}

void write_chunk(Chunk& chunk, CacheTrailer& trailer, DurableFile& ids, DurableFile& index) {
  if (trailer.id_bytes == 2) {
    const std::vector<uint16_t> narrow(chunk.ids.begin(), chunk.ids.end());
    ids.write(narrow.data(), narrow.size() * sizeof(uint16_t));
  } else {
    ids.write(chunk.ids.data(), chunk.ids.size() * sizeof(int32_t));
  }
  for (CacheEntry& e : chunk.entries) e.begin += static_cast<uint64_t>(trailer.tokens);
  index.write(chunk.entries.data(), chunk.entries.size() * sizeof(CacheEntry));
  trailer.tokens += static_cast<int64_t>(chunk.ids.size());
  add_stats(chunk.stats, trailer.stats);
}

void check_not_empty(const TokenCacheSpec& spec, const FilterCounts& c) {
  if (c.kept > 0) return;
  throw Error(
      Errc::invalid_argument, "corpus",
      fmt::format("{}: none of {} can be used: {} bad, {} empty, {} longer than {} source or "
                  "{} target tokens, {} too unequal in length; raise data.max_length or "
                  "data.max_length_ratio, or give other text",
                  display_name(spec.corpus.paths[0]), counted(c.read + c.bad, "line"), c.bad,
                  c.empty, c.too_long, spec.filter.max_source, spec.filter.max_target, c.ratio));
}

void copy_into(DurableFile& file, const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::vector<char> bytes(kChunkBytes);
  while (in.read(bytes.data(), static_cast<std::streamsize>(bytes.size())) || in.gcount() > 0)
    file.write(bytes.data(), static_cast<size_t>(in.gcount()));
  if (in.bad() || !in.eof()) throw Error(Errc::io, "token cache", path + ": cannot be read back");
}

}  // namespace

// The thread that makes a cache, and what it reports to those who read it.
class TokenCacheBuild {
 public:
  using State = TokenCache::State;
  TokenCacheBuild(TokenCacheSpec spec, uint64_t key, State& state)
      : spec_(std::move(spec)), key_(key), state_(state) {}

  void run() noexcept {
    try {
      make();
    } catch (...) {
      const std::lock_guard lock(state_.mutex);
      state_.failure = std::current_exception();
      state_.failed = true;
    }
    state_.changed.notify_all();
  }

  static TokenCache start(const TokenCacheSpec& spec, uint64_t key) {
    auto state = std::make_shared<State>();
    state->path = spec.path;
    state->interrupt = spec.interrupt;
    // The thread must not keep the state alive: its end is what stops the thread.
    state->maker = std::thread(
        [build = std::make_unique<TokenCacheBuild>(spec, key, *state)] { build->run(); });
    state->await([&] { return state->head_known; },
                 [&] {
                   if (spec.progress) spec.progress(state->lines_read);
                 });
    return TokenCache(std::move(state));
  }

  static void wait(const TokenCache& cache, const TokenCacheSpec& spec) {
    State& s = *cache.state_;
    s.await([&] { return s.whole != nullptr; },
            [&] {
              if (spec.progress) spec.progress(s.lines_read);
            });
  }

 private:
  void make() {
    const auto corpus = open_corpus(spec_.corpus);
    DurableFile ids(spec_.path), index(spec_.path + ".index");  // the index is never committed
    CacheTrailer trailer = empty_trailer();
    state_.id_bytes = trailer.id_bytes;
    state_.ids.open(spec_.path + ".tmp");
    state_.index.open(spec_.path + ".index.tmp");

    const int threads = std::max(1, spec_.threads);
    std::vector<Chunk> chunks(static_cast<size_t>(2 * threads + 1));
    OrderedWorkers workers(
        threads, static_cast<int>(chunks.size()),
        [&](int slot) { return read_chunk(*corpus, chunks[static_cast<size_t>(slot)]); },
        [&](int slot) { tokenize_chunk(spec_, chunks[static_cast<size_t>(slot)]); });
    for (int slot; (slot = workers.acquire()) >= 0; workers.release()) {
      if (state_.stop) throw Interrupted();
      write_chunk(chunks[static_cast<size_t>(slot)], trailer, ids, index);
      publish(trailer);
    }
    trailer.stats.counts.bad = corpus->bad_lines().count;
    check_not_empty(spec_, trailer.stats.counts);
    if (trailer.head.counts.kept == 0 || trailer.head.counts.kept == trailer.stats.counts.kept)
      trailer.head = trailer.stats;
    finish(trailer, ids);
    ids.commit();
    publish_whole(corpus->bad_lines());
  }

  CacheTrailer empty_trailer() const {
    CacheTrailer t;
    const bool monolingual = spec_.corpus.monolingual();
    t.key = key_;
    t.stats.source_vocab = monolingual ? 0 : spec_.source.vocab_size();
    t.stats.target_vocab = spec_.target.vocab_size();
    t.stats.source_eos = spec_.source.eos_id();
    t.stats.target_eos = spec_.target.eos_id();
    t.stats.target_pad = spec_.target.pad_id();
    t.stats.monolingual = monolingual ? 1 : 0;
    t.id_bytes = std::max(t.stats.source_vocab, t.stats.target_vocab) <= kNarrowVocab ? 2 : 4;
    return t;
  }

  // The head ends with the chunk in which it is full, and is known when a pair follows it: both
  // depend on the corpus alone.
  void publish(CacheTrailer& trailer) {
    const CacheStats& now = trailer.stats;
    CacheStats& head = trailer.head;
    {
      const std::lock_guard lock(state_.mutex);
      state_.lines_read = now.counts.read;
      state_.tokens = trailer.tokens;
      state_.pairs = now.counts.kept;
      if (head.counts.kept > 0 && now.counts.kept > head.counts.kept && !state_.head_known) {
        state_.head = head;
        state_.continues = state_.head_known = true;
      }
    }
    state_.changed.notify_all();
    if (head.counts.kept == 0 && trailer.tokens >= spec_.head_tokens) head = now;
  }

  void finish(CacheTrailer& trailer, DurableFile& ids) const {
    const char zeros[8] = {};
    const int64_t index_at = cache_index_offset(trailer.tokens, trailer.id_bytes);
    ids.write(zeros, static_cast<size_t>(index_at - trailer.tokens * trailer.id_bytes));
    copy_into(ids, spec_.path + ".index.tmp");
    trailer.checksum = XXH3_64bits(&trailer, offsetof(CacheTrailer, checksum));
    ids.write(&trailer, sizeof trailer);
  }

  void publish_whole(const BadLines& bad) {
    auto whole = std::make_unique<const WholeCache>(spec_.path, key_);
    {
      const std::lock_guard lock(state_.mutex);
      if (!state_.head_known) state_.head = whole->head;
      state_.head_known = true;
      state_.bad = bad;
      state_.owned_whole = std::move(whole);
      state_.whole = state_.owned_whole.get();
    }
    state_.changed.notify_all();
  }

  const TokenCacheSpec spec_;
  const uint64_t key_;
  State& state_;
};

TokenCache open_or_start_token_cache(const TokenCacheSpec& spec, CacheOrigin* origin) {
  const uint64_t key = cache_key(spec);
  const auto& paths = spec.corpus.paths;
  if (origin != nullptr) *origin = CacheOrigin::reused;
  if (std::find(paths.begin(), paths.end(), "-") == paths.end() &&
      std::filesystem::exists(spec.path)) {
    try {
      return TokenCache(spec.path, key);
    } catch (const Error&) {
      // Stale or damaged: made again below.
    }
  }
  if (origin != nullptr) *origin = CacheOrigin::built;
  return TokenCacheBuild::start(spec, key);
}

TokenCache open_or_build_token_cache(const TokenCacheSpec& spec, CacheOrigin* origin) {
  TokenCache cache = open_or_start_token_cache(spec, origin);
  TokenCacheBuild::wait(cache, spec);
  return cache;
}

}  // namespace saturate::data
