// SPDX-License-Identifier: Apache-2.0
// Schedules in time: greedy lists, simulation of given ones, and where transfers belong.
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <tuple>

#include "base/error.h"
#include "parallel/pipeline/schedule.h"

namespace saturate::parallel::pipeline {
namespace {

using Kind = ActionKind;
constexpr double kNever = std::numeric_limits<double>::infinity();

size_t at(int32_t i) { return static_cast<size_t>(i); }

// When what others wait for was there: ends of forwards and of input gradients.
class Ends {
 public:
  Ends(const Schedule& s, const ActionTimes& times)
      : s_(s),
        times_(times),
        forward_(at(s.chunks() * s.micro_batches), kNever),
        input_gradient_(forward_),
        own_gradient_(forward_) {}

  // From when on an action can run; kNever while what it needs has not been computed.
  double ready(const Action& a) const {
    const int32_t c = a.chunk, m = a.micro_batch;
    switch (a.kind) {
      case Kind::forward:
        return c == 0 ? 0 : forward_[index(c - 1, m)] + passing(c);
      case Kind::backward:
      case Kind::input_gradient: {
        const double own = forward_[index(c, m)];
        if (c + 1 == s_.chunks()) return own;
        return std::max(own, input_gradient_[index(c + 1, m)] + passing(c + 1));
      }
      case Kind::weight_gradient:
        return own_gradient_[index(c, m)];
      default:
        return kNever;
    }
  }
  void set(const Action& a, double end) {
    const size_t i = index(a.chunk, a.micro_batch);
    if (a.kind == Kind::forward) forward_[i] = end;
    if (a.kind == Kind::backward || a.kind == Kind::input_gradient) input_gradient_[i] = end;
    if (a.kind == Kind::input_gradient) own_gradient_[i] = end;
  }

 private:
  size_t index(int32_t chunk, int32_t micro_batch) const {
    return at(chunk * s_.micro_batches + micro_batch);
  }
  double passing(int32_t chunk) const { return s_.crosses(chunk) ? times_.transfer : 0; }

  const Schedule& s_;
  const ActionTimes& times_;
  std::vector<double> forward_, input_gradient_, own_gradient_;  // by chunk and micro-batch
};

// One run of the greedy scheduler.
class Greedy {
 public:
  Greedy(std::vector<int32_t> rank_of, int32_t micro_batches, const ActionTimes& times, bool split,
         int32_t bound, double patience)
      : s_{.micro_batches = micro_batches, .rank_of = std::move(rank_of), .actions = {}},
        times_(times),
        split_(split),
        bound_(bound),
        patience_(patience),
        ends_(s_, times_),
        next_(at(s_.chunks())) {
    const int32_t ranks = *std::max_element(s_.rank_of.begin(), s_.rank_of.end()) + 1;
    s_.actions.resize(at(ranks));
    clock_.resize(at(ranks));
    held_.resize(at(ranks));
    chunks_of_.resize(at(ranks));
    for (int32_t c = s_.chunks(); c-- > 0;) chunks_of_[at(s_.rank_of[at(c)])].push_back(c);
  }

  Schedule run() {
    const int32_t each = s_.micro_batches * (split_ ? 3 : 2);
    std::vector<Choice> choices;
    for (int32_t r = 0; r < s_.ranks(); ++r) choices.push_back(choice_of(r));
    for (int32_t left = s_.chunks() * each; left > 0; --left) {
      const Choice first =
          *std::min_element(choices.begin(), choices.end(),
                            [](const Choice& a, const Choice& b) { return a.start < b.start; });
      SAT_ASSERT(first.start < kNever);
      take(first);
      const int32_t c = first.action.chunk;  // it and its neighbours may have changed their minds
      for (int32_t k = std::max(c - 1, 0); k <= std::min(c + 1, s_.chunks() - 1); ++k)
        choices[at(s_.rank_of[at(k)])] = choice_of(s_.rank_of[at(k)]);
    }
    return std::move(s_);
  }

 private:
  struct Next {
    int32_t forward = 0, gradient = 0, weight = 0;  // micro-batches
  };
  struct Choice {
    double start = kNever;
    int32_t rank = 0;
    Action action;
  };

  Choice choice_of(int32_t rank) const {
    Choice best;
    const auto offer = [&](const Action& a) {
      const double start = std::max(clock_[at(rank)], ends_.ready(a));
      if (start < best.start) best = {start, rank, a};
    };
    // Better ones first: an equal start does not replace them. Chunks near the loss go first, whose
    // gradients free memory soonest.
    int32_t later = 0;  // chunks of this rank behind c
    const std::vector<int32_t>& chunks = chunks_of_[at(rank)];
    for (const int32_t c : chunks) {
      const Next& n = next_[at(c)];
      if (n.gradient >= n.forward) continue;
      offer({split_ ? Kind::input_gradient : Kind::backward, c, n.gradient});
    }
    for (const int32_t c : chunks) {
      // A place is kept for each later chunk, without which nothing here would ever be freed.
      if (next_[at(c)].forward < s_.micro_batches && held_[at(rank)] + later < bound_)
        offer({Kind::forward, c, next_[at(c)].forward});
      ++later;
    }
    for (const int32_t c : chunks) {
      const Next& n = next_[at(c)];
      if (!split_ || n.weight >= n.gradient) continue;
      const Action w{Kind::weight_gradient, c, n.weight};
      const double start = std::max(clock_[at(rank)], ends_.ready(w));
      if (start + patience_ * times_.of(w) < best.start) best = {start, rank, w};
    }
    return best;
  }

  void take(const Choice& c) {
    const double end = c.start + times_.of(c.action);
    ends_.set(c.action, end);
    clock_[at(c.rank)] = end;
    Next& n = next_[at(c.action.chunk)];
    if (c.action.kind == Kind::forward) ++n.forward, ++held_[at(c.rank)];
    if (c.action.kind == Kind::input_gradient || c.action.kind == Kind::backward) ++n.gradient;
    if (c.action.kind == Kind::weight_gradient) ++n.weight;
    if (c.action.kind == Kind::weight_gradient || c.action.kind == Kind::backward)
      --held_[at(c.rank)];
    s_.actions[at(c.rank)].push_back(c.action);
  }

  Schedule s_;
  const ActionTimes& times_;
  const bool split_;
  const int32_t bound_;
  const double patience_;
  Ends ends_;
  std::vector<std::vector<int32_t>> chunks_of_;  // by rank, those near the loss first
  std::vector<Next> next_;                       // by chunk
  std::vector<double> clock_;                    // by rank
  std::vector<int32_t> held_;
};

}  // namespace

double ActionTimes::of(const Action& a) const {
  switch (a.kind) {
    case Kind::forward:
      return forward[at(a.chunk)];
    case Kind::input_gradient:
      return input_gradient[at(a.chunk)];
    case Kind::weight_gradient:
      return weight_gradient[at(a.chunk)];
    case Kind::backward:
      return input_gradient[at(a.chunk)] + weight_gradient[at(a.chunk)];
    default:
      return 0;
  }
}

ActionTimes unit_times(int32_t chunks) {
  const std::vector<double> ones(at(chunks), 1.0);
  return {.forward = ones, .input_gradient = ones, .weight_gradient = ones};
}

Schedule list_schedule(std::vector<int32_t> rank_of, int32_t micro_batches,
                       const ActionTimes& times, bool split, int32_t bound) {
  Schedule best;
  double shortest = kNever;
  for (const double patience : {0.0, 0.25, 0.5, 1.0}) {
    Schedule s = Greedy(rank_of, micro_batches, times, split, bound, patience).run();
    const double makespan = simulate(s, times).makespan;
    if (makespan < shortest) best = std::move(s), shortest = makespan;
    if (!split) break;
  }
  return best;
}

Simulation simulate(const Schedule& s, const ActionTimes& times) {
  Ends ends(s, times);
  Simulation result;
  std::vector<size_t> head(at(s.ranks()));
  std::vector<double> clock(at(s.ranks()));
  for (const auto& list : s.actions) result.spans.emplace_back(list.size());
  double work = 0;
  for (bool moved = true; moved;) {
    moved = false;
    for (size_t r = 0; r < s.actions.size(); ++r) {
      for (; head[r] < s.actions[r].size(); ++head[r], moved = true) {
        const Action& a = s.actions[r][head[r]];
        Span& span = result.spans[r][head[r]];
        span = {clock[r], clock[r]};
        if (!a.computes()) continue;
        const double ready = ends.ready(a);
        if (ready == kNever) break;
        span.begin = std::max(clock[r], ready);
        clock[r] = span.end = span.begin + times.of(a);
        work += times.of(a);
        ends.set(a, span.end);
        result.makespan = std::max(result.makespan, span.end);
      }
    }
  }
  for (size_t r = 0; r < s.actions.size(); ++r) {
    if (head[r] < s.actions[r].size())
      throw Error(Errc::invalid_argument, "pipeline",
                  fmt::format("rank {} waits for ever at action {} ({}): what it needs is never "
                              "computed",
                              r, head[r], to_text(s.actions[r][head[r]])));
  }
  if (result.makespan > 0)
    result.bubble = 1 - work / (static_cast<double>(s.ranks()) * result.makespan);
  return result;
}

Schedule lower(const Schedule& plain, const ActionTimes& times) {
  Schedule s = plain;
  for (auto& list : s.actions) std::erase_if(list, [](const Action& a) { return !a.computes(); });
  const Simulation run = simulate(s, times);
  // By time; what computed goes before what is sent then, and transfers of one time go by chunk and
  // micro-batch: the same order on all ranks.
  struct Event {
    double time;
    int32_t order;
    Action action;
  };
  std::vector<std::vector<Event>> events(s.actions.size());
  for (size_t r = 0; r < s.actions.size(); ++r) {
    for (size_t i = 0; i < s.actions[r].size(); ++i) {
      const Action& a = s.actions[r][i];
      const double end = run.spans[r][i].end;
      events[r].push_back({end, -1, a});
      const bool forward = a.kind == Kind::forward;
      const bool gradient = a.kind == Kind::backward || a.kind == Kind::input_gradient;
      const int32_t to = forward ? a.chunk + 1 : a.chunk - 1;
      if (!(forward && s.crosses(to)) && !(gradient && s.crosses(a.chunk))) continue;
      const int32_t order = 2 * (a.micro_batch * s.chunks() + std::min(a.chunk, to)) + forward;
      events[r].push_back(
          {end,
           order,
           {forward ? Kind::send_forward : Kind::send_backward, a.chunk, a.micro_batch}});
      events[at(s.rank_of[at(to)])].push_back(
          {end,
           order,
           {forward ? Kind::receive_forward : Kind::receive_backward, to, a.micro_batch}});
    }
  }
  for (size_t r = 0; r < events.size(); ++r) {
    // Stable: computing actions that take no time keep their order.
    std::stable_sort(events[r].begin(), events[r].end(), [](const Event& a, const Event& b) {
      return std::tuple(a.time, a.order) < std::tuple(b.time, b.order);
    });
    s.actions[r].clear();
    for (const Event& e : events[r]) s.actions[r].push_back(e.action);
  }
  return s;
}

}  // namespace saturate::parallel::pipeline
