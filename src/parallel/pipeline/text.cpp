// SPDX-License-Identifier: Apache-2.0
// Schedules as text and as timelines.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>
#include <string_view>

#include "base/error.h"
#include "parallel/pipeline/schedule.h"

namespace saturate::parallel::pipeline {
namespace {

using Kind = ActionKind;
constexpr std::array<std::string_view, kActionKinds> kNames = {
    "F", "B", "I", "W", "SEND_F", "RECV_F", "SEND_B", "RECV_B"};
// What else PyTorch writes: gathers and reductions are recorded with the chunks here, and one
// action runs at a time.
constexpr std::array<std::string_view, 4> kForeign = {"UNSHARD", "RESHARD", "REDUCE_GRAD",
                                                      "OVERLAP_F_B"};
constexpr int32_t kMost = 1 << 16;  // of chunks and of micro-batches

size_t at(int32_t i) { return static_cast<size_t>(i); }

std::string_view trimmed(std::string_view s) {
  const auto first = s.find_first_not_of(" \t\r\"");
  return first == s.npos ? std::string_view{}
                         : s.substr(first, s.find_last_not_of(" \t\r\"") - first + 1);
}

// Takes a number from the front.
std::optional<int32_t> number(std::string_view& s) {
  int32_t n = 0;
  const auto [end, error] = std::from_chars(s.data(), s.data() + s.size(), n);
  if (error != std::errc{} || n < 0 || n >= kMost) return std::nullopt;
  s.remove_prefix(static_cast<size_t>(end - s.data()));
  return n;
}

std::optional<Action> parse_action(std::string_view s) {
  const auto chunk = number(s);
  if (!chunk) return std::nullopt;
  const size_t digits = s.find_first_of("0123456789");
  const auto name = std::find(kNames.begin(), kNames.end(), s.substr(0, digits));
  if (name == kNames.end() || digits == s.npos) return std::nullopt;
  s.remove_prefix(digits);
  const auto micro_batch = number(s);
  if (!micro_batch || !s.empty()) return std::nullopt;
  return Action{static_cast<Kind>(name - kNames.begin()), *chunk, *micro_batch};
}

struct Reader {
  const std::string& name;
  Schedule schedule = {};
  [[noreturn]] void refuse(size_t line, size_t cell, const std::string& what) const {
    throw Error(Errc::invalid_argument, "pipeline",
                fmt::format("{}, line {}, cell {}: {}", name, line, cell, what));
  }
};

// Calls f(number from 1, part) for each part of `text`.
void each_part(std::string_view text, char between, const auto& f) {
  for (size_t n = 1;; ++n) {
    const size_t end = text.find(between);
    f(n, text.substr(0, end));
    if (end == text.npos) return;
    text.remove_prefix(end + 1);
  }
}

}  // namespace

std::string to_text(const Action& a) {
  return fmt::format("{}{}{}", a.chunk, kNames[static_cast<size_t>(a.kind)], a.micro_batch);
}

std::string to_text(const Schedule& s) {
  std::string text;
  for (const auto& list : s.actions) {
    for (size_t i = 0; i < list.size(); ++i) {
      if (i > 0) text += ',';
      text += to_text(list[i]);
    }
    text += '\n';
  }
  return text;
}

Schedule parse_schedule(const std::string& text, const std::string& name) {
  Reader in{.name = name};
  Schedule& s = in.schedule;
  each_part(text, '\n', [&](size_t line, std::string_view row) {
    if (trimmed(row).empty()) return;
    std::vector<Action> list;
    each_part(row, ',', [&](size_t cell, std::string_view part) {
      part = trimmed(part);
      if (part.empty() || part == "None") return;
      for (const std::string_view foreign : kForeign) {
        if (part.find(foreign) != part.npos)
          in.refuse(line, cell,
                    fmt::format("{} is an action of PyTorch's that is not needed here: write the "
                                "file with the computing actions alone (compute_only)",
                                part));
      }
      const std::optional<Action> a = parse_action(part);
      if (!a)
        in.refuse(line, cell,
                  fmt::format("'{}' is no action: write chunk, kind ({}) and micro-batch, such as "
                              "0F3",
                              part, fmt::join(kNames, ", ")));
      const auto rank = static_cast<int32_t>(s.actions.size());
      if (a->chunk >= s.chunks()) s.rank_of.resize(at(a->chunk) + 1, -1);
      int32_t& home = s.rank_of[at(a->chunk)];
      if (home >= 0 && home != rank)
        in.refuse(line, cell,
                  fmt::format("chunk {} of {} lies on rank {}, and this is rank {}'s "
                              "line: a chunk has one rank",
                              a->chunk, part, home, rank));
      home = rank;
      s.micro_batches = std::max(s.micro_batches, a->micro_batch + 1);
      list.push_back(*a);
    });
    s.actions.push_back(std::move(list));
  });
  const auto nowhere = std::find(s.rank_of.begin(), s.rank_of.end(), -1);
  std::string flaw = nowhere == s.rank_of.end()
                         ? flaw_of(s)
                         : fmt::format("no line has chunk {}", nowhere - s.rank_of.begin());
  if (!flaw.empty()) throw Error(Errc::invalid_argument, "pipeline", name + ": " + flaw);
  return std::move(s);
}

std::string to_timeline(const Schedule& s, const ActionTimes& times) {
  const Simulation run = simulate(s, times);
  constexpr double kMicroseconds = 1e6;
  std::string json = "{\"displayTimeUnit\": \"ms\", \"traceEvents\": [\n";
  const auto add = [&](const std::string& event) {
    if (json.back() == '}') json += ",\n";
    json += event;
  };
  for (int32_t r = 0; r < s.ranks(); ++r) {
    add(fmt::format(
        R"({{"ph": "M", "name": "thread_name", "pid": 0, "tid": {}, "args": {{"name": "rank {}"}}}})",
        r, r));
  }
  for (int32_t r = 0; r < s.ranks(); ++r) {
    const auto& list = s.actions[at(r)];
    for (size_t i = 0; i < list.size(); ++i) {
      const Action& a = list[i];
      if (!a.computes()) continue;
      const Span& span = run.spans[at(r)][i];
      const auto time = [](double t) { return fmt::format("{:.3f}", t * kMicroseconds); };
      add(fmt::format(
          R"({{"ph": "X", "name": "{}", "cat": "{}", "pid": 0, "tid": {}, "ts": {}, "dur": {}, "args": {{"chunk": {}, "micro_batch": {}}}}})",
          to_text(a), kNames[static_cast<size_t>(a.kind)], r, time(span.begin),
          time(span.end - span.begin), a.chunk, a.micro_batch));
      // An arrow from the end of what makes a result to the beginning of what uses it.
      const bool forward = a.kind == Kind::forward;
      const auto arrow = [&](const char* ph, int32_t boundary, double t) {
        if (!s.crosses(boundary)) return;
        add(fmt::format(
            R"({{"ph": "{}", "bp": "e", "name": "{}", "cat": "transfer", "id": {}, "pid": 0, "tid": {}, "ts": {}}})",
            ph, forward ? "activations" : "gradients",
            2 * (a.micro_batch * s.chunks() + boundary) + forward, r, time(t)));
      };
      if (a.kind == Kind::weight_gradient) continue;
      arrow("s", forward ? a.chunk + 1 : a.chunk, span.end);
      arrow("f", forward ? a.chunk : a.chunk + 1, span.begin);
    }
  }
  return json + "\n]}\n";
}

}  // namespace saturate::parallel::pipeline
