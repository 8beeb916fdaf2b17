// SPDX-License-Identifier: Apache-2.0
#include "model/recorded_plan.h"

#include <algorithm>

namespace saturate::model {

RecordedPlan::RecordedPlan(const ParameterStore& store, const Stream& stream, bool graph,
                           const char* first, const char* capture)
    : tape_(store, TapeMode::inference, nullptr), stream_(stream), replay_(graph, first, capture) {}

void* RecordedPlan::scratch(size_t bytes) {
  return scratch_.emplace_back(stream_.device(), bytes).data();
}

void RecordedPlan::finish() {
  arena_bytes_ = tape_.plan();
  if (!stream_.device().is_cuda()) return;
  arena_ = zeroed(stream_, arena_bytes_);
}

void RecordedPlan::run(const Context& ctx, Buffer& shared) {
  const bool cuda = ctx.device.is_cuda();
  if (!cuda && shared.bytes() < arena_bytes_) {
    shared = zeroed(stream_, arena_bytes_);
  }
  char* arena = cuda ? arena_.as<char>() : shared.as<char>();
  replay_.enqueue(stream_, [&] { tape_.run(ctx, arena, false); });
}

int64_t step_size(Device device, int64_t all, int64_t taken, int64_t least, bool always_all) {
  if (!device.is_cuda()) return std::min(all, std::max(taken, least));
  if (always_all) return all;
  int64_t size = 1;
  while (size < taken) size *= 4;
  return std::min(size, all);
}

int64_t position_bound(Device device, int64_t most, int64_t needed, bool always_most) {
  if (!device.is_cuda() || always_most) return most;
  int64_t bound = 256;
  while (bound < needed) bound *= 4;
  return std::min(bound, most);
}

int64_t usual_prompt_rows(int multiprocessors, size_t memory_bytes, int64_t row_bytes) {
  constexpr int kLarge = 128;
  constexpr int64_t kMore = 4 * kPromptRows;
  constexpr size_t kPart = 64;
  const bool fits = kPart * static_cast<size_t>(kMore * row_bytes) <= memory_bytes;
  return multiprocessors >= kLarge && fits ? kMore : kPromptRows;
}

int64_t pass_size(Device device, int64_t all, int64_t tokens, bool always_all) {
  constexpr int64_t kLeast = 32;  // rows of which products have kernels of their own (few_rows)
  if (tokens == 0) return 0;
  if (!device.is_cuda()) return (tokens + 7) / 8 * 8;
  int64_t size = all;
  while (!always_all && size % 32 == 0 && size / 4 >= std::max(tokens, kLeast)) size /= 4;
  return size;
}

int64_t prompt_pass_size(Device device, int64_t all, int64_t tokens, bool always_all) {
  while (!always_all && all >= 2 * kPromptRows && all / 2 >= tokens) all = (all / 2 + 7) / 8 * 8;
  return pass_size(device, all, tokens, always_all);
}

}  // namespace saturate::model
