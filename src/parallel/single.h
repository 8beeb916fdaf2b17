// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstring>

#include "parallel/communicator.h"
#include "runtime/cuda_backend.h"

namespace saturate::parallel {

// One rank: every collective copies its input to its output, on any device.
class SingleCommunicator final : public Communicator {
 public:
  explicit SingleCommunicator(Device device) : Communicator(device, 0, 1) {}
  const char* name() const noexcept override { return "single"; }
  void wait(Ticket, const Context&) override {}
  void broadcast(void*, int64_t, int) override {}
  double all_reduce_sum(double value) override { return value; }
  double all_reduce_max(double value) override { return value; }
  void set_step(int64_t) noexcept override {}
  void set_action(const char*, Pace) noexcept override {}
  void report_failure(const std::exception&) override {}

 private:
  void connect(const Group&) override {}
  Ticket run(const Collective& c, const void* input, void* output,
             const Context& compute) override {
    if (input == nullptr || c.kind == CollectiveKind::broadcast) return {};
    const size_t bytes = static_cast<size_t>(c.elements()) * size_of(c.dtype);
    if (device_.is_cuda())
      cuda::copy(output, input, bytes, compute.stream);
    else if (bytes > 0)
      std::memcpy(output, input, bytes);
    return {};
  }
};

}  // namespace saturate::parallel
