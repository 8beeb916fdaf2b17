// SPDX-License-Identifier: Apache-2.0
#include "train/late_update.h"

#include <algorithm>
#include <limits>
#include <numeric>

namespace saturate::train {
namespace {

using Moment = LateUpdate::Moment;
constexpr Moment kNever = std::numeric_limits<Moment>::max();
// Elements of a part: the first layers need not wait for many more weights than theirs, and a launch takes
// microseconds of work.
constexpr int64_t kPartElements = int64_t{4} << 20;
constexpr size_t kMostRanges = 64;  // of a launch

int64_t aligned(int64_t elements) {
  return (elements + kernels::kParameterAlign - 1) / kernels::kParameterAlign *
         kernels::kParameterAlign;
}

int64_t elements_of(const std::vector<OwnedRange>& ranges) {
  return std::accumulate(ranges.begin(), ranges.end(), int64_t{0},
                         [](int64_t sum, const OwnedRange& r) { return sum + r.end - r.begin; });
}

}  // namespace

const char* LateUpdate::refusal(const ParameterStore& store, const OptimizerOptions& options,
                                const parallel::Communicator& ranks) {
  if (ranks.size() > 1) return "ranks gather what others have updated";
  if (options.kind != OptimizerOptions::Kind::adamw)
    return "only AdamW changes each element by itself";
  if (store.is_offloaded()) return "state in host memory passes by at the end of the step";
  return nullptr;
}

LateUpdate::LateUpdate(const OptimizerStep& optimizer, const ParameterStore& store,
                       const std::vector<Moment>& first_uses)
    : optimizer_(optimizer),
      beside_(store.device(), Stream::Priority::low),
      fork_(store.device()),
      kept_(store.device(), sizeof(StepState)) {
  std::vector<int32_t> order;
  Moment last = 0;
  for (int32_t i = 0; i < std::ssize(store.specs()); ++i) {
    if (store.spec({i}).frozen) continue;
    order.push_back(i);
    const Moment use = first_uses[static_cast<size_t>(i)];
    if (use < kNever) last = std::max(last, use);
  }
  // What no forward pass reads is there with what is read last: before gradients are written again.
  const auto needed = [&](int32_t i) { return std::min(first_uses[static_cast<size_t>(i)], last); };
  std::ranges::stable_sort(order, {}, needed);
  for (const int32_t i : order) {
    const ParameterSpec& p = store.spec({i});
    const int64_t end = p.offset + aligned(p.size());
    Part* const open = parts_.empty() ? nullptr : &parts_.back();
    const bool joins = open != nullptr && open->update.group == p.group &&
                       elements_of(open->update.ranges) + p.size() <= kPartElements;
    if (joins && open->update.ranges.back().end == p.offset) {
      open->update.ranges.back().end = end;
    } else if (joins && open->update.ranges.size() < kMostRanges) {
      open->update.ranges.push_back({p.offset, end, p.offset});
    } else {
      parts_.push_back({{p.group, {{p.offset, end, p.offset}}}, needed(i)});
    }
  }
  for (size_t i = 0; i < parts_.size(); ++i) done_.emplace_back(store.device());
}

void LateUpdate::run(const Stream& stream, const Part& part) const {
  optimizer_.enqueue_update({stream.device(), stream.native()}, part.update, kept_.as<StepState>());
}

void LateUpdate::begin(const Stream& compute) {
  arrived_ = 0;
  fork_.record(compute);
  fork_.wait_on(beside_);
  for (size_t i = 0; i < parts_.size(); ++i) {
    run(beside_, parts_[i]);
    done_[i].record(beside_);
  }
}

void LateUpdate::before(Moment next, const Stream& compute) {
  const size_t first = arrived_;
  while (arrived_ < parts_.size() && parts_[arrived_].needed <= next) ++arrived_;
  if (arrived_ > first) done_[arrived_ - 1].wait_on(compute);
}

void LateUpdate::keep(const StepState* state, const Stream& compute) {
  copy_on_device(compute, kept_.data(), state, sizeof(StepState));
}

void LateUpdate::settle(const Stream& compute) {
  for (const Part& part : parts_) run(compute, part);
  forget(compute);
}

void LateUpdate::forget(const Stream& compute) {
  const StepState none;
  copy_to_device(compute, kept_.data(), &none, sizeof none);
  compute.synchronize();  // before `none` goes
}

}  // namespace saturate::train
