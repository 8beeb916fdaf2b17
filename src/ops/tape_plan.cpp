// SPDX-License-Identifier: Apache-2.0
// Where values lie, and what orders the lanes.
//
// Operations of one lane run in the order of the list. One of another lane is waited for where a
// value demands it: it wrote what is read here, or touched what is written here. Segments begin and
// end with all lanes joined. So an operation may run beside some that stand before or behind it in
// the list, and a value lives as long as any operation that may run beside one of its own.
#include "ops/tape_plan.h"

#include <algorithm>

#include "ops/arena_plan.h"
#include "ops/tape.h"

namespace saturate {
namespace {

// By operation and lane: the last operation of the lane that has finished when this one begins.
// Those of earlier segments all have.
using Clocks = std::vector<std::vector<int32_t>>;

class LaneSchedule {
 public:
  LaneSchedule(const Tape& tape, TapePlan& plan) : tape_(tape), plan_(plan) {
    clocks_.resize(tape.operations());
    plan.waits.resize(tape.operations());
    plan.waited_for.resize(tape.operations());
    for (const OperationRange& segment : plan.segments) order(segment);
  }

  // First and last operation that may run beside operation i, itself included.
  OperationRange beside(int32_t i, const OperationRange& segment) const {
    OperationRange r{i, i};
    for (int32_t j = segment.begin; plan_.lanes > 1 && j < segment.end; ++j) {
      if (finished(i, j) || finished(j, i)) continue;
      r.begin = std::min(r.begin, j);
      r.end = std::max(r.end, j);
    }
    return r;
  }

 private:
  int32_t lane(int32_t i) const { return tape_.operation(static_cast<size_t>(i)).traits.lane; }
  bool finished(int32_t before, int32_t i) const {
    return before < i &&
           clocks_[static_cast<size_t>(i)][static_cast<size_t>(lane(before))] >= before;
  }

  void order(const OperationRange& segment) {
    const auto lanes = static_cast<size_t>(plan_.lanes);
    std::vector<std::vector<int32_t>> now(lanes, std::vector<int32_t>(lanes, -1));  // by lane
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

size_t Tape::plan(int32_t slots) {
  SAT_ASSERT(!planned_ && slots >= 1);
  planned_ = true;
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
  std::vector<int32_t> segment_of(values_.size(), -1);
  for (size_t i = 0; i < operations_.size(); ++i) {
    const Operation& o = operations_[i];
    const OperationRange beside =
        schedule.beside(static_cast<int32_t>(i), plan_.segments[static_cast<size_t>(o.segment)]);
    const auto touch = [&](Value v) {
      if (!v) return;
      const auto storage = static_cast<size_t>(storage_of(v));
      TapePlan::Place& p = plan_.places[storage];
      p.first = p.first < 0 ? beside.begin : std::min(p.first, beside.begin);
      p.last = values_[storage].kept ? INT32_MAX : std::max(p.last, beside.end);
      int32_t& segment = segment_of[storage];
      p.stash =
          slots > 1 && (p.stash || values_[storage].kept || (segment >= 0 && segment != o.segment));
      segment = o.segment;
    };
    for (Value v : o.writes) touch(v);
    for (Value v : o.reads) touch(v);
  }
  // One slot: values that live on share memory with those that do not.
  for (const bool stash : {true, false}) {
    std::vector<ArenaRequest> requests;
    std::vector<TapePlan::Place*> owners;
    for (size_t i = 0; i < values_.size(); ++i) {
      TapePlan::Place& p = plan_.places[i];
      if (values_[i].external || p.first < 0 || p.stash != stash) continue;
      requests.push_back({values_[i].bytes(), p.first, p.last});
      owners.push_back(&p);
    }
    const ArenaPlan arena = plan_arena(requests);
    for (size_t r = 0; r < owners.size(); ++r) owners[r]->offset = arena.offsets[r];
    (stash ? plan_.stash_bytes : plan_.scratch_bytes) = arena.bytes;
  }
  return plan_.bytes();
}

size_t Tape::unshared_bytes() const {
  size_t sum = 0;
  for (size_t i = 0; i < values_.size(); ++i) {
    sum += values_[i].external || plan_.places[i].first < 0 ? 0 : values_[i].bytes();
  }
  return sum;
}

}  // namespace saturate
