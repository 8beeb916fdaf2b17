// SPDX-License-Identifier: Apache-2.0
// The optimizer's state that lies in host memory, on its way through a window of device memory.
#pragma once
#include <array>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "kernels/optimizer/optimizer.h"
#include "ops/parameters.h"

namespace saturate::train {

// Where the optimizer's arrays of a group lie, from place `first` of OwnedRange::local on. Null: the
// group has no such array.
struct StateMemory {
  int64_t first = 0;
  void *master = nullptr, *m = nullptr, *v = nullptr, *average = nullptr;
};

/// Brings the state of offloaded groups (ParameterStore::offload) to the device chunk by chunk, lets
/// the caller change it there, and takes it back: while chunk k is updated, chunk k + 1 comes and
/// chunk k - 1 goes, each direction on a stream of its own (Pudipeddi et al., arXiv:2002.05645).
///
/// Order    an element is copied as it is, and every element is in one chunk: results are those of
///          state that lies on the device, to the last bit.
/// Cost     12 bytes an element each way between host and device in f32, 16 with an average.
class StateStream {
 public:
  // Chunks that are in the window at once: one that comes, one that is updated, one that goes.
  static constexpr int64_t kDepth = 3;

  // `store` is allocated and outlives this. Errors: out_of_memory.
  explicit StateStream(const ParameterStore& store);
  // Device memory of the window: for three chunks of a 32nd of the state, or of 2^23 elements. 0 when
  // nothing is offloaded.
  static size_t bytes(const ParameterStore& store, Purpose purpose) noexcept;

  // Neighbouring places of the own ranges of one group.
  struct Chunk {
    const ParameterGroup* group;
    int64_t first = 0, elements = 0;  // of OwnedRange::local
    std::vector<OwnedRange> ranges = {};
  };
  std::span<const Chunk> chunks() const noexcept { return chunks_; }

  // Enqueues the first copies to the device, which work enqueued on `stream` until run() does not
  // wait for. Both calls, one after the other, in every step; `stream` may be captured.
  void begin(const Stream& stream);
  // Enqueues update(chunk, its memory on the device) on `stream` for all chunks, and the copies
  // around it. Work of `stream` after it finds all state in host memory again.
  using Update = std::function<void(const Chunk& chunk, const StateMemory& memory)>;
  void run(const Stream& stream, const Update& update);

 private:
  StateMemory memory_of(size_t chunk) const;
  void load(size_t chunk);
  void store(size_t chunk);
  template <class Copy>
  void each_array(size_t chunk, const Copy& copy) const;

  std::vector<Chunk> chunks_;
  int64_t places_ = 0;  // of a chunk in the window
  size_t element_ = 0;  // bytes
  Buffer window_;
  Stream in_, out_;
  Event begun_;
  std::vector<Event> loaded_, updated_, stored_;  // by place in the window
};

}  // namespace saturate::train
