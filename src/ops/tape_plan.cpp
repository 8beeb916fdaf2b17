// SPDX-License-Identifier: Apache-2.0
// Where values lie, and what orders the lanes.
//
// Operations of one lane run in the order of the list. One of another lane is waited for where a
// value demands it: it wrote what is read here, or touched what is written here. Segments begin and
// end with all lanes joined. So an operation may run beside some that stand before or behind it in
// the list, and memory goes from one value to another only when every operation on the first has
// surely finished before any on the second begins.
#include "ops/tape_plan.h"

#include <algorithm>

#include "ops/arena_plan.h"
#include "ops/tape.h"

namespace saturate {
namespace {

// By operation and lane: up to where the lane has surely finished when this one begins.
using Clocks = std::vector<std::vector<int32_t>>;

class LaneSchedule {
 public:
  LaneSchedule(const Tape& tape, TapePlan& plan) : tape_(tape), plan_(plan) {
    clocks_.resize(tape.operations());
    plan.waits.resize(tape.operations());
    plan.waited_for.resize(tape.operations());
    for (const OperationRange& segment : plan.segments) order(segment);
  }

  const std::vector<int32_t>& finished_before(size_t i) const { return clocks_[i]; }

 private:
  int32_t lane(int32_t i) const { return tape_.operation(static_cast<size_t>(i)).traits.lane; }

  void order(const OperationRange& segment) {
    const auto lanes = static_cast<size_t>(plan_.lanes);
    std::vector<std::vector<int32_t>> now(  // by lane
        lanes, std::vector<int32_t>(lanes, segment.begin - 1));
    std::vector<bool> forked(lanes, false);
    forked[0] = true;
    struct Uses {  // of a storage, by lane: the last operation that wrote or touched it
      std::vector<int32_t> wrote, touched;
    };
    std::map<int32_t, Uses> uses;
    for (int32_t i = segment.begin; i < segment.end; ++i) {
      const Tape::Operation& o = tape_.operation(static_cast<size_t>(i));
      const auto own = static_cast<size_t>(o.traits.lane);
      std::vector<int32_t>& clock = now[own];
      auto& waits = plan_.waits[static_cast<size_t>(i)];
      if (!forked[own]) waits.push_back(TapePlan::kFork);
      forked[own] = true;
      std::vector<int32_t> needed(lanes, -1);
      const auto uses_of = [&](Value v) -> Uses& {
        Uses& u = uses[tape_.storage_of(v)];
        if (u.wrote.empty()) u.wrote.assign(lanes, -1), u.touched.assign(lanes, -1);
        return u;
      };
      const auto need = [&](const std::vector<int32_t>& last) {
        for (size_t l = 0; l < lanes; ++l) needed[l] = std::max(needed[l], last[l]);
      };
      for (Value v : o.reads) {
        if (v) need(uses_of(v).wrote);
      }
      for (Value v : o.writes) {
        if (v) need(uses_of(v).touched);
      }
      // The latest first: it may have waited for the others.
      std::vector<int32_t> candidates;
      for (size_t l = 0; l < lanes; ++l) {
        if (l != own && needed[l] >= 0) candidates.push_back(needed[l]);
      }
      std::sort(candidates.rbegin(), candidates.rend());
      for (int32_t other : candidates) {
        const auto l = static_cast<size_t>(lane(other));
        if (clock[l] >= other) continue;
        waits.push_back(other);
        plan_.waited_for[static_cast<size_t>(other)] = true;
        const std::vector<int32_t>& theirs = clocks_[static_cast<size_t>(other)];
        for (size_t k = 0; k < lanes; ++k) clock[k] = std::max(clock[k], theirs[k]);
        clock[l] = std::max(clock[l], other);
      }
      clocks_[static_cast<size_t>(i)] = clock;
      clock[own] = i;
      for (Value v : o.reads) {
        if (v) uses_of(v).touched[own] = i;
      }
      for (Value v : o.writes) {
        if (v) uses_of(v).touched[own] = uses_of(v).wrote[own] = i;
      }
    }
  }

  const Tape& tape_;
  TapePlan& plan_;
  Clocks clocks_;
};

}  // namespace

// Moves operations of other lanes to where they may start: behind the last one of their segment
// that they need, and behind their lane's. So the list has about the order in time, and values live
// no longer than they must, wherever a gather or a reduction was recorded.
void Tape::hoist_lanes() {
  const auto meet = [this](const std::vector<Value>& a, const std::vector<Value>& b) {
    return std::any_of(a.begin(), a.end(), [&](Value x) {
      return x && std::any_of(b.begin(), b.end(),
                              [&](Value y) { return y && storage_of(x) == storage_of(y); });
    });
  };
  const auto follows = [&](const Operation& o, const Operation& before) {
    return o.segment != before.segment || o.traits.lane == before.traits.lane ||
           meet(o.reads, before.writes) || meet(o.writes, before.writes) ||
           meet(o.writes, before.reads);
  };
  std::vector<int32_t> order;
  for (int32_t i = 0; i < static_cast<int32_t>(operations_.size()); ++i) {
    const Operation& o = operations_[static_cast<size_t>(i)];
    auto at = order.end();
    while (o.traits.lane != 0 && at != order.begin() &&
           !follows(o, operations_[static_cast<size_t>(*std::prev(at))])) {
      --at;
    }
    order.insert(at, i);
  }
  reorder(order);
}

size_t Tape::plan(int32_t slots) {
  SAT_ASSERT(!planned_ && slots >= 1);
  planned_ = true;
  hoist_lanes();
  plan_.slots = slots;
  plan_.places.resize(values_.size());
  plan_.segments.resize(segments_.size());
  for (size_t i = 0; i < operations_.size(); ++i) {
    OperationRange& r = plan_.segments[static_cast<size_t>(operations_[i].segment)];
    if (r.size() == 0) r.begin = static_cast<int32_t>(i);
    r.end = static_cast<int32_t>(i) + 1;
    plan_.lanes = std::max(plan_.lanes, operations_[i].traits.lane + 1);
  }
  const LaneSchedule schedule(*this, plan_);
  const auto lanes = static_cast<size_t>(plan_.lanes);
  struct Life {  // by lane
    std::vector<int32_t> finished_before, last;
    int32_t segment = -1;
  };
  std::vector<Life> lives(values_.size());
  for (size_t i = 0; i < operations_.size(); ++i) {
    const Operation& o = operations_[i];
    const auto touch = [&](Value v) {
      if (!v) return;
      const auto storage = static_cast<size_t>(storage_of(v));
      const bool kept = values_[storage].kept;
      TapePlan::Place& p = plan_.places[storage];
      Life& life = lives[storage];
      if (!p.used) life = {schedule.finished_before(i), std::vector<int32_t>(lanes, -1), o.segment};
      for (size_t l = 0; l < lanes; ++l) {
        life.finished_before[l] = std::min(life.finished_before[l], schedule.finished_before(i)[l]);
      }
      life.last[static_cast<size_t>(o.traits.lane)] = kept ? INT32_MAX : static_cast<int32_t>(i);
      p.used = true;
      p.stash = slots > 1 && (p.stash || kept || life.segment != o.segment);
    };
    for (Value v : o.writes) touch(v);
    for (Value v : o.reads) touch(v);
  }
  // One slot: values that live on share memory with those that do not.
  for (const bool stash : {true, false}) {
    std::vector<size_t> owners, bytes;
    for (size_t i = 0; i < values_.size(); ++i) {
      const TapePlan::Place& p = plan_.places[i];
      if (values_[i].external || !p.used || p.stash != stash) continue;
      owners.push_back(i);
      bytes.push_back(values_[i].bytes());
    }
    const auto precedes = [&](const Life& a, const Life& b) {
      for (size_t l = 0; l < lanes; ++l) {
        if (a.last[l] > b.finished_before[l]) return false;
      }
      return true;
    };
    const ArenaPlan arena = plan_arena(bytes, [&](size_t a, size_t b) {
      const Life &first = lives[owners[a]], &second = lives[owners[b]];
      return !precedes(first, second) && !precedes(second, first);
    });
    for (size_t r = 0; r < owners.size(); ++r) plan_.places[owners[r]].offset = arena.offsets[r];
    (stash ? plan_.stash_bytes : plan_.scratch_bytes) = arena.bytes;
  }
  return plan_.bytes();
}

size_t Tape::unshared_bytes() const {
  size_t sum = 0;
  for (size_t i = 0; i < values_.size(); ++i) {
    sum += values_[i].external || !plan_.places[i].used ? 0 : values_[i].bytes();
  }
  return sum;
}

}  // namespace saturate
