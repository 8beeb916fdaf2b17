// SPDX-License-Identifier: Apache-2.0
// One rank of a run that is only planned: the others do not exist.
#pragma once
#include "parallel/communicator.h"

namespace saturate::parallel {

// Makes groups and so layouts and lists of operations of any rank of any number of ranks. Its
// collectives do nothing, their outputs stay as they are: a list can run for the time that its
// computation takes, and its results mean nothing. On the host this rank is taken for all.
class PlanningCommunicator final : public Communicator {
 public:
  PlanningCommunicator(Device device, int rank, int size) : Communicator(device, rank, size) {}
  const char* name() const noexcept override { return "planning"; }
  void wait(Ticket, const Context&) override {}
  void broadcast(void*, int64_t, int) override {}
  double all_reduce_sum(double value) override { return value * size(); }
  double all_reduce_max(double value) override { return value; }
  void set_step(int64_t) noexcept override {}
  void set_action(const char*, Pace) noexcept override {}
  void report_failure(const std::exception&) override {}

 private:
  void connect(const Group&) override {}
  Ticket run(const Collective&, const void*, void*, const Context&) override { return {}; }
};

}  // namespace saturate::parallel
