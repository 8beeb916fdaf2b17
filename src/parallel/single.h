// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "parallel/communicator.h"

namespace saturate::parallel {

// One rank: every collective is the identity and returns at once, on any device.
class SingleCommunicator final : public Communicator {
 public:
  int rank() const noexcept override { return 0; }
  int size() const noexcept override { return 1; }
  const char* name() const noexcept override { return "single"; }
  void begin_all_reduce(void*, int64_t, DType, const Stream&) override {}
  void wait(const Stream&) override {}
  void broadcast(void*, int64_t, int) override {}
  void barrier() override {}
  double all_reduce_sum(double value) override { return value; }
  double all_reduce_max(double value) override { return value; }
  void set_step(int64_t) noexcept override {}
  void report_failure(const std::exception&) override {}
};

}  // namespace saturate::parallel
