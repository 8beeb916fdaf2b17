// SPDX-License-Identifier: Apache-2.0
#include "plan/simulate.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <queue>
#include <tuple>

#include "base/error.h"

namespace saturate::plan {
namespace {

class Simulator {
 public:
  Simulator(std::span<const TaskList> lists, double beside) : lists_(lists), beside_(beside) {
    ranks_.resize(lists.size());
    result_.times.resize(lists.size());
    result_.ranks.resize(lists.size());
    for (size_t r = 0; r < lists.size(); ++r) {
      Rank& rank = ranks_[r];
      rank.tasks.resize(lists[r].size());
      result_.times[r].resize(lists[r].size());
      for (size_t i = 0; i < lists[r].size(); ++i) {
        const Task& t = lists[r][i];
        SAT_ASSERT(t.lane >= 0 && t.us >= 0);
        rank.lanes.resize(std::max(rank.lanes.size(), static_cast<size_t>(t.lane) + 1));
        rank.lanes[static_cast<size_t>(t.lane)].order.push_back(static_cast<int32_t>(i));
        rank.tasks[i].waits = static_cast<int32_t>(t.waits.size());
        for (const int32_t w : t.waits) {
          SAT_ASSERT(w >= 0 && static_cast<size_t>(w) < lists[r].size());
          rank.tasks[static_cast<size_t>(w)].waited_by.push_back(static_cast<int32_t>(i));
        }
        if (t.meeting >= 0) ++meetings_[t.meeting].members;
      }
    }
  }

  Simulation run() {
    for (size_t r = 0; r < ranks_.size(); ++r) start_heads(r);
    while (!events_.empty()) {
      const auto [at, r, i, version] = events_.top();
      events_.pop();
      if (ranks_[r].tasks[static_cast<size_t>(i)].version != version) continue;
      now_ = at;
      finish(r, i);
    }
    require_all_ended();
    for (size_t r = 0; r < ranks_.size(); ++r) {
      RankTime& t = result_.ranks[r];
      for (const TaskTime& x : result_.times[r]) t.end_us = std::max(t.end_us, x.end_us);
      for (const auto& [axis, us] : ranks_[r].exposed) t.exposed_by_axis.emplace_back(axis, us);
      result_.end_us = std::max(result_.end_us, t.end_us);
    }
    return std::move(result_);
  }

 private:
  struct Progress {
    int32_t waits = 0;  // still to end
    std::vector<int32_t> waited_by;
    double left = 0, since = 0, rate = 1;  // of a running one
    uint32_t version = 0;
    bool ended = false;
  };
  struct LaneState {
    std::vector<int32_t> order;
    size_t head = 0;
    bool busy = false, arrived = false;  // arrived: the head stands in its meeting
  };
  struct Rank {
    std::vector<Progress> tasks;
    std::vector<LaneState> lanes;
    std::vector<int32_t> computing, communicating;
    double since = 0;  // up to where its time has been counted
    std::map<std::string, double> exposed;
  };
  struct Meeting {
    int members = 0;
    std::vector<std::pair<size_t, int32_t>> arrived;  // rank, task
  };
  using Event = std::tuple<double, size_t, int32_t, uint32_t>;

  const Task& task(size_t r, int32_t i) const { return lists_[r][static_cast<size_t>(i)]; }

  void start_heads(size_t r) {
    for (size_t l = 0; l < ranks_[r].lanes.size(); ++l) start_head(r, l);
  }

  void start_head(size_t r, size_t l) {
    LaneState& lane = ranks_[r].lanes[l];
    if (lane.busy || lane.arrived || lane.head == lane.order.size()) return;
    const int32_t i = lane.order[lane.head];
    if (ranks_[r].tasks[static_cast<size_t>(i)].waits > 0) return;
    const int64_t number = task(r, i).meeting;
    if (number < 0) return start(r, i, task(r, i).us);
    Meeting& m = meetings_[number];
    m.arrived.emplace_back(r, i);
    lane.arrived = true;
    if (static_cast<int>(m.arrived.size()) < m.members) return;
    double us = 0;  // as long as the slowest member takes
    for (const auto& [other, j] : m.arrived) us = std::max(us, task(other, j).us);
    for (const auto& [other, j] : m.arrived) start(other, j, us);
  }

  void start(size_t r, int32_t i, double us) {
    Rank& rank = ranks_[r];
    count(r);
    LaneState& lane = rank.lanes[static_cast<size_t>(task(r, i).lane)];
    lane.busy = true;
    lane.arrived = false;
    Progress& p = rank.tasks[static_cast<size_t>(i)];
    p.left = us;
    p.since = now_;
    p.rate = 1;
    result_.times[r][static_cast<size_t>(i)].begin_us = now_;
    if (task(r, i).kind == TaskKind::compute) {
      rank.computing.push_back(i);
      p.rate = rank.communicating.empty() ? 1 : beside_;
    } else {
      rank.communicating.push_back(i);
      if (rank.communicating.size() == 1) set_rates(r, beside_);
    }
    schedule(r, i);
  }

  void finish(size_t r, int32_t i) {
    Rank& rank = ranks_[r];
    count(r);
    Progress& p = rank.tasks[static_cast<size_t>(i)];
    p.ended = true;
    ++p.version;
    result_.times[r][static_cast<size_t>(i)].end_us = now_;
    std::erase(task(r, i).kind == TaskKind::compute ? rank.computing : rank.communicating, i);
    if (task(r, i).kind == TaskKind::communication && rank.communicating.empty()) set_rates(r, 1);
    LaneState& lane = rank.lanes[static_cast<size_t>(task(r, i).lane)];
    lane.busy = false;
    ++lane.head;
    for (const int32_t j : p.waited_by) --rank.tasks[static_cast<size_t>(j)].waits;
    start_heads(r);
  }

  void set_rates(size_t r, double rate) {
    for (const int32_t i : ranks_[r].computing) {
      Progress& p = ranks_[r].tasks[static_cast<size_t>(i)];
      p.left = std::max(0.0, p.left - (now_ - p.since) * p.rate);
      p.since = now_;
      p.rate = rate;
      schedule(r, i);
    }
  }

  void schedule(size_t r, int32_t i) {
    Progress& p = ranks_[r].tasks[static_cast<size_t>(i)];
    events_.emplace(now_ + p.left / p.rate, r, i, ++p.version);
  }

  // Where the rank's time since the last change went.
  void count(size_t r) {
    Rank& rank = ranks_[r];
    const double us = now_ - rank.since;
    rank.since = now_;
    RankTime& t = result_.ranks[r];
    if (!rank.computing.empty()) t.compute_us += us;
    if (rank.communicating.empty()) return;
    t.communication_us += us;
    if (!rank.computing.empty()) return;
    t.exposed_us += us;
    rank.exposed[task(r, rank.communicating.front()).axis] += us;
  }

  void require_all_ended() const {
    std::string stuck;
    for (size_t r = 0; r < ranks_.size(); ++r) {
      for (const LaneState& lane : ranks_[r].lanes) {
        if (lane.head == lane.order.size() || stuck.size() > 500) continue;
        const int32_t i = lane.order[lane.head];
        stuck += fmt::format(
            "{}rank {} at {} ({})", stuck.empty() ? "" : ", ", r, task(r, i).name,
            lane.arrived ? "the others it meets never come" : "what it waits for never ends");
      }
    }
    if (!stuck.empty())
      throw Error(Errc::invalid_argument, "simulate", "no task can begin any more: " + stuck);
  }

  std::span<const TaskList> lists_;
  double beside_;
  double now_ = 0;
  std::vector<Rank> ranks_;
  std::map<int64_t, Meeting> meetings_;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  Simulation result_;
};

}  // namespace

Simulation simulate(std::span<const TaskList> ranks, double beside) {
  return Simulator(ranks, beside).run();
}

}  // namespace saturate::plan
