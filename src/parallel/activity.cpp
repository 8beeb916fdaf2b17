// SPDX-License-Identifier: Apache-2.0
#include "parallel/activity.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>

namespace saturate::parallel {
namespace {

constexpr std::chrono::seconds kFirstWarning{60}, kLimit{600};
constexpr int kLimitOfLongest = 10;

double seconds(StallWatch::Clock::duration d) { return std::chrono::duration<double>(d).count(); }

// The one that keeps the others waiting: it is not in a collective itself, or is the least far.
int culprit(std::span<const Whereabouts> ranks) {
  const auto behind = [](const Whereabouts& a, const Whereabouts& b) {
    return std::tuple(a.waits, a.step, a.moves) < std::tuple(b.waits, b.step, b.moves);
  };
  return static_cast<int>(std::ranges::min_element(ranks, behind) - ranks.begin());
}

}  // namespace

void Activity::set_step(int64_t step) {
  std::lock_guard lock(mutex_);
  at_.step = step;
  ++at_.moves;
}

void Activity::set_action(const char* action, Pace pace) {
  std::lock_guard lock(mutex_);
  action_ = action;
  at_.pace = pace;
  ++at_.moves;
}

void Activity::begin(const Collective& c) {
  std::lock_guard lock(mutex_);
  collective_ = c;
  what_ = nullptr;
  at_.waits = true;
  ++at_.moves;
}

void Activity::begin(const char* what) {
  std::lock_guard lock(mutex_);
  collective_.reset();
  what_ = what;
  at_.waits = true;
  ++at_.moves;
}

void Activity::end() {
  std::lock_guard lock(mutex_);
  at_.waits = false;
  ++at_.moves;
}

Whereabouts Activity::now() const {
  std::lock_guard lock(mutex_);
  Whereabouts w = at_;
  w.text = fmt::format("while {}", action_);
  if (collective_ || what_ != nullptr)
    w.text += fmt::format(", {} {}", w.waits ? "in" : "after",
                          collective_ ? describe(*collective_) : what_);
  return w;
}

StallWatch::Finding StallWatch::look(std::span<const Whereabouts> ranks, Clock::time_point now) {
  const uint64_t moves =
      std::transform_reduce(ranks.begin(), ranks.end(), uint64_t{0}, std::plus<>(),
                            [](const auto& r) { return r.moves; });
  const bool counts =
      std::ranges::all_of(ranks, [](const auto& r) { return r.pace == Pace::steady; });
  const Clock::duration quiet = now - since_;
  if (!counts || !counts_ || moves != moves_) {
    if (counts && counts_) longest_ = std::max(longest_, quiet);
    moves_ = moves;
    counts_ = counts;
    since_ = now;
    next_ = kFirstWarning;
    return {};
  }
  if (quiet >= std::max<Clock::duration>(kLimit, kLimitOfLongest * longest_))
    return {fmt::format("no rank has gone on for {:.0f} s: {}", seconds(quiet), text_of(ranks)),
            culprit(ranks)};
  if (quiet < next_) return {};
  next_ = 2 * next_;
  return {fmt::format("no rank has gone on for {:.0f} s: {}", seconds(quiet), text_of(ranks)), -1};
}

std::string text_of(std::span<const Whereabouts> ranks) {
  std::vector<std::pair<std::string, std::vector<size_t>>> groups;
  for (size_t r = 0; r < ranks.size(); ++r) {
    const std::string text = fmt::format("at step {} {}", ranks[r].step, ranks[r].text);
    const auto same = std::ranges::find(groups, text, [](const auto& g) { return g.first; });
    (same == groups.end() ? groups.emplace_back(text, std::vector<size_t>{}) : *same)
        .second.push_back(r);
  }
  std::string all;
  for (const auto& [text, members] : groups)
    all += fmt::format("{}{} {} {}", all.empty() ? "" : "; ",
                       members.size() == 1 ? "rank" : "ranks", fmt::join(members, ", "), text);
  return all;
}

}  // namespace saturate::parallel
