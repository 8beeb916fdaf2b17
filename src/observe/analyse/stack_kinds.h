// SPDX-License-Identifier: Apache-2.0
// What a thread is about, as the files and functions of its stack show.
#pragma once
#include <cstdint>
#include <vector>

#include "observe/trace/trace.h"

namespace saturate::observe {

class StackKinds {
 public:
  // Reads each node once. Cost: O(nodes).
  explicit StackKinds(const Trace& trace);

  // Code is made: traced, compiled, tuned or linked, by torch.compile, Triton, XLA, NVRTC and the
  // like.
  bool compiles(uint32_t stack) const { return has(stack, kCompiles); }
  // The next batch is made here: inside the fetching part of a loader, or of an iterator that was
  // asked for the next of something; not in a loader's worker, which works for another process.
  bool makes_data(uint32_t stack) const { return has(stack, kFetches) && !has(stack, kWorker); }
  // The backward pass of autograd, with no code of Python below.
  bool is_backward(uint32_t stack) const { return has(stack, kBackward); }
  // An optimizer's update of the weights.
  bool is_update(uint32_t stack) const { return has(stack, kUpdate); }
  // The values of an array become text, which needs them on the host.
  bool prints(uint32_t stack) const { return has(stack, kPrints); }
  // The host waits for the value of an array of JAX's, to convert or print it, or until it is there.
  bool reads_value(uint32_t stack) const { return has(stack, kReads); }
  // A checkpointed layer runs forward again.
  bool computes_again(uint32_t stack) const { return has(stack, kRecomputes); }
  // The frame of the program in which a model was called, itself outside of any: kNoStack if none.
  uint32_t model_call(uint32_t stack) const {
    return stack < model_calls_.size() ? model_calls_[stack] : kNoStack;
  }

 private:
  static constexpr uint8_t kCompiles = 1, kFetches = 2, kWorker = 4, kBackward = 8, kUpdate = 16,
                           kPrints = 32, kRecomputes = 64, kReads = 128;
  bool has(uint32_t stack, uint8_t kind) const {
    return stack < kinds_.size() && (kinds_[stack] & kind) != 0;
  }
  std::vector<uint8_t> kinds_;         // by node, with those of its callers
  std::vector<uint32_t> model_calls_;  // by node
};

}  // namespace saturate::observe
