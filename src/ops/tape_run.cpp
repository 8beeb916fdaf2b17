// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <cstring>

#include "ops/tape.h"

namespace saturate {

void* Run::operator()(Value v) const {
  if (!v) return nullptr;
  if (renames_ != nullptr) {
    const auto other = renames_->find(v.id);
    if (other != renames_->end()) v = other->second;
  }
  const auto storage = static_cast<size_t>(tape_.storage_of(v));
  const Tape::Info& owner = tape_.values_[storage];
  const size_t inside = tape_.values_[static_cast<size_t>(v.id)].offset;
  if (owner.external) {
    char* const memory = static_cast<char*>(const_cast<void*>(of_slot(owner.memory)));
    return memory == nullptr ? nullptr : memory + inside;
  }
  const TapePlan& plan = tape_.plan_;
  const TapePlan::Place& p = plan.places[storage];
  if (!p.stash && place_.scratch != nullptr) return place_.scratch + p.offset + inside;
  const auto slot = static_cast<size_t>(p.stash ? place_.slot : plan.slots);
  return arena_ + slot * plan.stash_bytes + p.offset + inside;
}

void* Run::at(Value v, int64_t element) const {
  char* const memory = as<char>(v);
  if (memory == nullptr) return nullptr;
  return memory + static_cast<size_t>(element) * size_of(tape_.info(v).dtype);
}

const void* Run::of_slot(const void* p) const {
  if (place_.slot == 0 && place_.block_slots.empty()) return p;
  const char* at = static_cast<const char*>(p);
  for (size_t i = 0; i < tape_.slot_blocks_.size(); ++i) {
    const Tape::SlotBlock& b = tape_.slot_blocks_[i];
    const std::less<const char*> before;
    if (!before(at, b.base) && before(at, b.base + b.bytes)) {
      const int32_t slot = place_.block_slots.empty() ? place_.slot : place_.block_slots[i];
      return at + b.stride * static_cast<size_t>(slot);
    }
  }
  return p;
}

OperationRange Tape::range(const char* segment) const {
  if (segment == nullptr) return {0, static_cast<int32_t>(operations_.size())};
  for (size_t i = 0; i < segments_.size(); ++i) {
    if (std::strcmp(segments_[i], segment) == 0) return plan_.segments[i];
  }
  throw Error(Errc::invalid_argument, "tape",
              fmt::format("there is no segment {}; record it with segment() first", segment));
}

namespace {

// Makes lanes wait for each other. Events are made where they are first needed.
class LaneEvents {
 public:
  LaneEvents(std::vector<Event>& events, Device device, std::span<const Lane> lanes, size_t count)
      : events_(events), lanes_(lanes) {
    while (lanes.size() > 1 && events.size() < count) events.emplace_back(device);
  }
  explicit operator bool() const noexcept { return lanes_.size() > 1; }
  void record(size_t event, int32_t lane) { events_[event].record(stream(lane)); }
  void wait(size_t event, int32_t lane) { events_[event].wait_on(stream(lane)); }

 private:
  const Stream& stream(int32_t lane) const { return *lanes_[static_cast<size_t>(lane)].stream; }
  std::vector<Event>& events_;
  std::span<const Lane> lanes_;
};

}  // namespace

void Tape::run(const Context& ctx, void* arena, const RunOptions& o) const {
  SAT_ASSERT(planned_ && o.slot >= 0 && o.slot < plan_.slots);
  SAT_ASSERT(o.lanes.empty() || std::ssize(o.lanes) >= plan_.lanes);
  SAT_ASSERT(o.block_slots.empty() || o.block_slots.size() == slot_blocks_.size());
  // What micro-batches add up is not what operations write then, but what reductions hold.
  const bool sums_units = parameters_.sharing().zero >= 2;
  const Run::Place place{.accumulate = o.accumulate && !sums_units,
                         .slot = o.slot,
                         .block_slots = o.block_slots,
                         .scratch = o.scratch,
                         .scales_known = o.scales_known};
  const size_t fork = operations_.size(), join = fork + 1;
  LaneEvents events(events_, device(), o.lanes, join + static_cast<size_t>(plan_.lanes));
  std::vector<bool> used(static_cast<size_t>(plan_.lanes), false);
  for (int32_t i = o.range.begin; i < o.range.end; ++i) {
    const Operation& operation = operations_[static_cast<size_t>(i)];
    const int32_t lane = events ? operation.traits.lane : 0;
    const OperationRange& segment = plan_.segments[static_cast<size_t>(operation.segment)];
    SAT_ASSERT(segment.begin >= o.range.begin && segment.end <= o.range.end);
    if (events) {
      if (i == segment.begin) events.record(fork, 0);
      for (int32_t other : plan_.waits[static_cast<size_t>(i)]) {
        events.wait(other == TapePlan::kFork ? fork : static_cast<size_t>(other), lane);
      }
    }
    operation.run(Run(o.lanes.empty() ? ctx : o.lanes[static_cast<size_t>(lane)].ctx, *this,
                      static_cast<char*>(arena), place, operation.renames.get(),
                      operation.folds.get()));
    if (events) {
      if (plan_.waited_for[static_cast<size_t>(i)]) events.record(static_cast<size_t>(i), lane);
      used[static_cast<size_t>(lane)] = true;
      for (int32_t l = 1; i + 1 == segment.end && l < plan_.lanes; ++l) {
        if (!used[static_cast<size_t>(l)]) continue;
        events.record(join + static_cast<size_t>(l), l);
        events.wait(join + static_cast<size_t>(l), 0);
        used[static_cast<size_t>(l)] = false;
      }
    }
    if (o.after) o.after(i);
  }
}

}  // namespace saturate
