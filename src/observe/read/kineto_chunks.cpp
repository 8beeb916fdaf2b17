// SPDX-License-Identifier: Apache-2.0
#include "observe/read/kineto_chunks.h"

#include <fmt/format.h>

#include <algorithm>
#include <system_error>
#include <thread>

#include "base/error.h"

namespace saturate::observe {
namespace {

constexpr size_t kMaxEvent = size_t{16} << 20;

bool is_blank(char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; }

// The last '{' that comes after "}," and, if there is more, before a quote; npos when there is
// none.
size_t last_begin(std::string_view bytes) {
  for (size_t at = bytes.rfind('{'); at != std::string_view::npos && at > 0;
       at = bytes.rfind('{', at - 1)) {
    size_t before = at, after = at + 1;
    while (before > 0 && is_blank(bytes[before - 1])) --before;
    if (before == 0 || bytes[before - 1] != ',') continue;
    --before;
    while (before > 0 && is_blank(bytes[before - 1])) --before;
    if (before == 0 || bytes[before - 1] != '}') continue;
    while (after < bytes.size() && is_blank(bytes[after])) ++after;
    if (after == bytes.size() || bytes[after] == '"') return at;
  }
  return std::string_view::npos;
}

}  // namespace

KinetoChunks::KinetoChunks(Input& input, std::string_view unread, int64_t offset,
                           KinetoOptions options)
    : input_(input), options_(options), carry_(unread), carry_offset_(offset) {}

void KinetoChunks::read() {
  const int cores = std::clamp(static_cast<int>(std::thread::hardware_concurrency()), 1, 4);
  const int threads = options_.threads > 0 ? options_.threads : cores;
  for (int i = 0; i < threads; ++i) records_.push_back(std::make_unique<KinetoRecords>());
  std::vector<std::thread> others;
  for (int i = 1; i < threads; ++i) {
    try {
      others.emplace_back([this, i] { work(*records_[static_cast<size_t>(i)]); });
    } catch (const std::system_error&) {  // no more threads allowed: fewer do as well
      break;
    }
  }
  work(*records_[0]);
  for (std::thread& t : others) t.join();
  if (failure_) std::rethrow_exception(failure_);
  if (!done_)
    throw Error(Errc::invalid_argument, "doctor",
                fmt::format("{}: at byte {} (decompressed): the file ends before the JSON value "
                            "does; the file is no complete trace, record or copy it again",
                            input_.name(), carry_offset_ + static_cast<int64_t>(carry_.size())));
  rest_ += carry_;
}

// Under input_mutex_, so that one thread unpacks while the others parse.
bool KinetoChunks::take(Chunk& chunk) {
  if (at_end_) return false;
  chunk.broken = nullptr;
  chunk.size = carry_.size();
  if (chunk.memory.size() < chunk.size) chunk.memory.resize(chunk.size);
  std::copy(carry_.begin(), carry_.end(), chunk.memory.begin());
  chunk.offset = carry_offset_;
  chunk.number = taken_++;
  chunk.first = chunk.number == 0;
  carry_.clear();
  try {
    for (;;) {
      const size_t want = chunk.size + std::max(options_.chunk_bytes, chunk.size / 2);
      if (chunk.memory.size() < want) chunk.memory.resize(want);
      while (chunk.size < want && !at_end_) {
        const size_t n = input_.read(chunk.memory.data() + chunk.size, want - chunk.size);
        at_end_ = n == 0;
        chunk.size += n;
      }
      if (at_end_) break;
      if (const size_t cut = last_begin(chunk.bytes()); cut != std::string::npos) {
        carry_.assign(chunk.bytes().substr(cut));
        chunk.size = cut;
        break;
      }
      if (chunk.size > kMaxEvent) break;
    }
  } catch (...) {
    at_end_ = true;
    chunk.broken = std::current_exception();
  }
  carry_offset_ = chunk.offset + static_cast<int64_t>(chunk.size);
  return true;
}

KinetoChunks::Outcome KinetoChunks::parse(std::string_view bytes, int64_t offset, bool first,
                                          KinetoRecords& into) const {
  Outcome outcome;
  const char *const begin = bytes.data(), *const end = begin + bytes.size();
  const char* at = begin;
  KinetoEvent event;
  KinetoQuick quick;
  const auto skip_blanks = [&] {
    while (at != end && is_blank(*at)) ++at;
  };
  const auto careful = [&](const char* from) -> const char* {
    const std::string_view text(from, static_cast<size_t>(end - from));
    const int64_t where = offset + (from - begin);
    JsonTokens json(text, where, input_.name());
    try {
      read_event_carefully(json, text, where, event);
    } catch (const Error&) {
      if (!json.ran_out()) throw;
      return nullptr;
    }
    return from + (json.end_offset() - where);
  };
  try {
    skip_blanks();
    if (first && at != end && *at == ']') {
      outcome.used = static_cast<size_t>(at + 1 - begin);
      outcome.done = true;
      return outcome;
    }
    for (;;) {
      if (at == end) return outcome;
      const char* after = options_.careful ? nullptr : quick.read(at, end, event);
      if (after == nullptr) after = careful(at);
      if (after == nullptr) return outcome;
      at = after;
      skip_blanks();
      if (at == end) return outcome;  // with its comma it counts
      if (*at != ',' && *at != ']')
        throw Error(Errc::invalid_argument, "doctor",
                    fmt::format("{}: at byte {} (decompressed): ',' or a closing bracket was "
                                "expected; the file is no complete trace, record or copy it again",
                                input_.name(), offset + (at - begin)));
      outcome.done = *at++ == ']';
      into.add(event);
      skip_blanks();
      outcome.used = static_cast<size_t>(at - begin);
      if (outcome.done) return outcome;
    }
  } catch (...) {
    outcome.failure = std::current_exception();
  }
  return outcome;
}

void KinetoChunks::work(KinetoRecords& into) {
  for (Chunk chunk;;) {
    {
      const std::lock_guard lock(mutex_);
      if (stopped_) break;
    }
    {
      const std::lock_guard lock(input_mutex_);
      if (!take(chunk)) break;
    }
    const KinetoRecords::Mark mark = into.mark();
    Outcome outcome;
    if (!chunk.broken) outcome = parse(chunk.bytes(), chunk.offset, chunk.first, into);
    std::unique_lock lock(mutex_);
    turn_changed_.wait(lock, [&] { return turn_ == chunk.number; });
    settle(chunk, std::move(outcome), mark, into);
    ++turn_;
    turn_changed_.notify_all();
  }
  try {
    into.trace().sort();
  } catch (...) {
    const std::lock_guard lock(mutex_);
    if (!failure_) failure_ = std::current_exception();
  }
}

// With mutex_ held, in the order of the chunks.
void KinetoChunks::settle(Chunk& chunk, Outcome outcome, const KinetoRecords::Mark& mark,
                          KinetoRecords& into) {
  if (failure_) return into.roll_back(mark);
  if (done_) {
    into.roll_back(mark);
    if (chunk.broken) failure_ = chunk.broken;
    rest_ += chunk.bytes();
    return;
  }
  if (chunk.broken) outcome.failure = chunk.broken;
  if (!tail_.empty() && !chunk.broken) {
    into.roll_back(mark);
    tail_ += chunk.bytes();
    chunk.size = tail_.size();
    chunk.memory = std::move(tail_);
    chunk.offset = tail_offset_;
    outcome = parse(chunk.bytes(), chunk.offset, !any_, into);
  }
  tail_.clear();
  any_ = any_ || outcome.used > 0;
  const int64_t used_offset = chunk.offset + static_cast<int64_t>(outcome.used);
  if (!outcome.failure && !outcome.done) {
    tail_.assign(chunk.bytes().substr(outcome.used));
    tail_offset_ = used_offset;
    if (tail_.size() > 2 * kMaxEvent) {
      try {
        throw Error(Errc::invalid_argument, "doctor",
                    fmt::format("{}: at byte {} (decompressed): an event of more than 32 MiB; the "
                                "file is no trace of a profiler",
                                input_.name(), tail_offset_));
      } catch (...) {
        outcome.failure = std::current_exception();
      }
    }
  }
  if (outcome.failure) failure_ = outcome.failure;
  if (outcome.done) {
    done_ = true;
    rest_.assign(chunk.bytes().substr(outcome.used));
    rest_offset_ = used_offset;
  }
  stopped_ = stopped_ || done_ || failure_ != nullptr;
}

}  // namespace saturate::observe
