// SPDX-License-Identifier: Apache-2.0
#include "observe/read/kineto.h"

#include <fmt/format.h>

#include <charconv>
#include <string>
#include <string_view>
#include <utility>

#include "observe/read/json_tokens.h"
#include "observe/read/kineto_chunks.h"
#include "observe/read/merge.h"

namespace saturate::observe {
namespace {

// All of a trace but its events.
class KinetoReader {
 public:
  KinetoReader(Input& input, KinetoOptions options)
      : input_(input), options_(options), json_(input) {
    trace_.source = kKinetoSource;
    trace_.framework = "PyTorch";
  }

  Trace read() {
    const JsonToken first = json_.next();
    if (first == JsonToken::begin_array) {
      read_events();
    } else if (first == JsonToken::begin_object) {
      while (json_.next() == JsonToken::key) read_top_level();
    } else {
      json_.fail("a trace begins with '{' or '['");
    }
    if (!seen_events_)
      json_.fail("no \"traceEvents\" in the file: JSON, but no trace of torch.profiler");
    json_.next();  // nothing may follow
    move_to_base();
    trace_.sort();
    return std::move(trace_);
  }

 private:
  void read_top_level() {
    const bool events = json_.text() == "traceEvents", devices = json_.text() == "deviceProperties",
               ranks = json_.text() == "distributedInfo",
               base = json_.text() == "baseTimeNanoseconds";
    const JsonToken value = json_.next();
    if (events) {
      if (value != JsonToken::begin_array) json_.fail("\"traceEvents\" is no array");
      read_events();
    } else if (devices && value == JsonToken::begin_array) {
      read_devices();
    } else if (ranks && value == JsonToken::begin_object) {
      read_ranks();
    } else if (base && value == JsonToken::number) {
      base_ns_ = integer(value, false);
    } else {
      json_.skip(value);
    }
  }

  void read_events() {
    seen_events_ = true;
    KinetoChunks chunks(input_, json_.unread(), json_.end_offset(), options_);
    chunks.read();
    json_.leave_array(chunks.rest(), chunks.rest_offset());
    for (auto& records : chunks.records()) {
      // The first has its tables as they are: only the others' records need new numbers.
      if (!std::exchange(taken_, true))
        take(records->trace());
      else
        append_trace(trace_, records->trace());
      records.reset();
    }
  }

  // Times count from a moment that each process chooses, since PyTorch 2.3 or so.
  void move_to_base() {
    constexpr int64_t kMostNs = 2'000'000'000'000'000'000;
    if (base_ns_ <= 0 || base_ns_ > kMostNs) return;
    const auto move = [&](auto& records) {
      for (auto& r : records) {
        if (r.start_ns > kMostNs) continue;
        r.start_ns += base_ns_;
        r.end_ns += base_ns_;
      }
    };
    move(trace_.ops);
    move(trace_.calls);
    move(trace_.spans);
    for (MemorySample& m : trace_.memory) {
      if (m.time_ns < kMostNs) m.time_ns += base_ns_;
    }
  }

  void take(Trace& first) {
    trace_.names = std::move(first.names);
    trace_.streams = std::move(first.streams);
    trace_.threads = std::move(first.threads);
    trace_.ops = std::move(first.ops);
    trace_.calls = std::move(first.calls);
    trace_.spans = std::move(first.spans);
    trace_.memory = std::move(first.memory);
    trace_.work = std::move(first.work);
    trace_.collectives = std::move(first.collectives);
    trace_.shapes = first.shapes;
    trace_.malformed += first.malformed;
  }

  void read_ranks() {
    int64_t rank = -1, world = 0;
    while (json_.next() == JsonToken::key) {
      const bool is_rank = json_.text() == "rank", is_world = json_.text() == "world_size";
      const JsonToken value = json_.next();
      if (is_rank && value == JsonToken::number)
        rank = integer(value, false);
      else if (is_world && value == JsonToken::number)
        world = integer(value, false);
      else
        json_.skip(value);
    }
    if (rank >= 0) trace_.rank_of[0] = rank;
    if (rank >= 0 && world > 1)
      trace_.notes.push_back(fmt::format(
          "rank {} of {}: waiting for a slower rank counts as communication", rank, world));
  }

  void read_devices() {
    for (JsonToken t = json_.next(); t != JsonToken::end_array; t = json_.next()) {
      if (t != JsonToken::begin_object) {
        json_.skip(t);
        continue;
      }
      DeviceInfo info;
      int64_t id = 0;
      while (json_.next() == JsonToken::key) {
        const std::string key(json_.text());
        const JsonToken value = json_.next();
        if (key == "id")
          id = integer(value);
        else if (key == "name" && value == JsonToken::string)
          info.name = json_.text();
        else if (key == "numSms")
          info.multiprocessors = integer(value);
        else
          json_.skip(value);
      }
      if (id >= 0 && id < 1024) trace_.devices[static_cast<uint32_t>(id)] = info;
    }
  }

  // Passes over the value; 0 for what is no integer, or an error if `strict`.
  int64_t integer(JsonToken value, bool strict = true) {
    int64_t n = 0;
    const std::string_view t = json_.text();
    const bool readable = value == JsonToken::number || value == JsonToken::string;
    const auto [end, error] = readable
                                  ? std::from_chars(t.data(), t.data() + t.size(), n)
                                  : std::from_chars_result{nullptr, std::errc::invalid_argument};
    const bool good = error == std::errc{} && end == t.data() + t.size();
    if (!good && strict && value == JsonToken::number) json_.fail("an integer was expected");
    if (!good && strict) json_.skip(value);
    return good ? n : 0;
  }

  Input& input_;
  const KinetoOptions options_;
  JsonTokens json_;
  Trace trace_;
  int64_t base_ns_ = 0;
  bool seen_events_ = false, taken_ = false;
};

}  // namespace

Trace read_kineto(Input& input, KinetoOptions options) {
  return KinetoReader(input, options).read();
}

}  // namespace saturate::observe
