// SPDX-License-Identifier: Apache-2.0
#include "train/state_stream.h"

#include <algorithm>

namespace saturate::train {
namespace {

constexpr StateArray kStreamed[] = {StateArray::master, StateArray::first_moment,
                                    StateArray::second_moment, StateArray::average};

// 32 MiB of each array in f32: a copy of so many bytes takes 0.6 ms at 55 GB/s, against which the
// few microseconds between two copies do not count.
constexpr int64_t kMostElements = int64_t{1} << 23;
// So that small models keep little of what offloading freed.
constexpr int64_t kLeastChunks = 32;

int64_t chunk_elements(const ParameterStore& store, Purpose purpose) noexcept {
  size_t bytes = 0;
  for (const ParameterGroup& group : store.groups())
    if (group.in_host(StateArray::first_moment))
      bytes += group.bytes(StateArray::first_moment, purpose);
  const auto elements = static_cast<int64_t>(bytes / size_of(store.wide_type()));
  constexpr int64_t kAlign = kernels::kParameterAlign;
  return std::min((elements / kLeastChunks + kAlign - 1) / kAlign * kAlign, kMostElements);
}

}  // namespace

size_t StateStream::bytes(const ParameterStore& store, Purpose purpose) noexcept {
  const int64_t arrays = purpose == Purpose::averaged_training ? 4 : 3;
  return static_cast<size_t>(kDepth * arrays * chunk_elements(store, purpose)) *
         size_of(store.wide_type());
}

StateStream::StateStream(const ParameterStore& store)
    : places_(chunk_elements(store, store.purpose())),
      element_(size_of(store.wide_type())),
      window_(store.device(), bytes(store, store.purpose())),
      in_(store.device()),
      out_(store.device()),
      begun_(store.device()) {
  for (const ParameterGroup& group : store.groups()) {
    if (!group.in_host(StateArray::master)) continue;
    for (const OwnedRange& r : group.owned()) {
      for (int64_t begin = r.begin; begin < r.end;) {
        const int64_t local = r.local + begin - r.begin;
        if (chunks_.empty() || chunks_.back().group != &group ||
            local - chunks_.back().first >= places_)
          chunks_.push_back({.group = &group, .first = local});
        Chunk& chunk = chunks_.back();
        const int64_t end = std::min(r.end, begin + places_ - (local - chunk.first));
        chunk.ranges.push_back({begin, end, local});
        chunk.elements = local + end - begin - chunk.first;
        begin = end;
      }
    }
  }
  for (int64_t i = 0; i < kDepth; ++i) {
    loaded_.emplace_back(store.device());
    updated_.emplace_back(store.device());
    stored_.emplace_back(store.device());
  }
}

StateMemory StateStream::memory_of(size_t chunk) const {
  const Chunk& c = chunks_[chunk];
  void* at[std::size(kStreamed)] = {};
  char* next = window_.as<char>() + window_.bytes() / static_cast<size_t>(kDepth) *
                                        (chunk % static_cast<size_t>(kDepth));
  for (size_t i = 0; i < std::size(kStreamed); ++i) {
    if (c.group->array(kStreamed[i]).data() == nullptr) continue;
    at[i] = next;
    next += static_cast<size_t>(places_) * element_;
  }
  return {.first = c.first, .master = at[0], .m = at[1], .v = at[2], .average = at[3]};
}

// copy(memory in the window, memory of the host, bytes).
template <class Copy>
void StateStream::each_array(size_t chunk, const Copy& copy) const {
  const Chunk& c = chunks_[chunk];
  const StateMemory memory = memory_of(chunk);
  void* const window[] = {memory.master, memory.m, memory.v, memory.average};
  for (size_t i = 0; i < std::size(kStreamed); ++i) {
    if (window[i] == nullptr) continue;
    copy(window[i],
         c.group->array(kStreamed[i]).as<char>() + static_cast<size_t>(c.first) * element_,
         static_cast<size_t>(c.elements) * element_);
  }
}

void StateStream::load(size_t chunk) {
  const size_t place = chunk % static_cast<size_t>(kDepth);
  if (chunk >= static_cast<size_t>(kDepth)) stored_[place].wait_on(in_);  // who was there has gone
  each_array(chunk,
             [&](void* here, const void* host, size_t n) { copy_to_device(in_, here, host, n); });
  loaded_[place].record(in_);
}

void StateStream::store(size_t chunk) {
  const size_t place = chunk % static_cast<size_t>(kDepth);
  updated_[place].wait_on(out_);
  each_array(chunk,
             [&](const void* here, void* host, size_t n) { copy_to_host(out_, host, here, n); });
  stored_[place].record(out_);
}

void StateStream::begin(const Stream& stream) {
  if (chunks_.empty()) return;
  begun_.record(stream);  // the step before has put everything back
  begun_.wait_on(in_);
  for (size_t c = 0; c < std::min(chunks_.size(), static_cast<size_t>(kDepth)); ++c) load(c);
}

void StateStream::run(const Stream& stream, const Update& update) {
  for (size_t c = 0; c < chunks_.size(); ++c) {
    const size_t place = c % static_cast<size_t>(kDepth);
    loaded_[place].wait_on(stream);
    update(chunks_[c], memory_of(c));
    updated_[place].record(stream);
    store(c);
    const size_t next = c + static_cast<size_t>(kDepth);
    if (next < chunks_.size()) load(next);
    if (c + 1 == chunks_.size()) stored_[place].wait_on(stream);
  }
}

}  // namespace saturate::train
