// SPDX-License-Identifier: Apache-2.0
// How long things take on a machine: recorded operations, memory traffic, collectives.
#pragma once
#include <string>
#include <string_view>

#include "ops/tape.h"
#include "plan/machine.h"

namespace saturate::plan {

// What tells measured operations apart: name, shapes of what it reads and writes, type, work.
// "linear 25088x512 2048x512 > 25088x2048 bf16 52.6Gflop".
std::string operation_key(const Tape& tape, const Tape::Operation& operation);

struct OperationCost {
  double us = 0;
  bool measured = false;
  bool scaled = false;  // from measured operations of other shapes (nearest.h)
};
// Of an operation without its collective. The measured time where the machine has one or has some of
// other shapes, else rates_us().
OperationCost operation_cost(const Machine& machine, const Tape& tape,
                             const Tape::Operation& operation);

// The longer of so many operations of products at their rate and memory traffic at the bandwidth, and
// the launch.
double rates_us(const Machine& machine, std::string_view name, DType type, double bytes,
                double flops);

// The share of the products' rate that an attention of so many operations and bytes of queries, keys,
// values and results runs at. Operations a byte grow with the text: 256 of a causal one over 1,024
// tokens in 16 bits. Up to there it is Compute::attention, and for longer ones it nears
// attention_long, as I / (I + h) with I operations a byte and h from those two points.
double attention_share(const Compute& compute, double flops, double bytes);

// Of reading and writing so many bytes of device memory in one operation.
double traffic_us(const Machine& machine, double bytes);

// How a group of ranks lies on the hosts: `local` of its ranks on each of `hosts` hosts.
struct Placement {
  int local = 1, hosts = 1;
  int size() const noexcept { return local * hosts; }
};
// Of ranks that fill hosts one after the other. A group that lies unevenly is taken as on as many
// hosts as it touches, with the most ranks that one of them has.
Placement placement_of(const Machine& machine, const std::vector<int>& ranks);

// Time of a collective over that group when all groups like it run it together. `bytes`: of the
// whole tensor, as LinkTable has them. Between hosts it is done in levels, inside and between at the
// same time; ranks of a host share its adapters.
// Errors: invalid_argument (the group spans hosts and the machine says nothing of such links).
double collective_us(const Machine& machine, parallel::CollectiveKind kind, double bytes,
                     const Placement& group);

// The bytes of LinkTable for a recorded collective.
double whole_bytes(const parallel::Collective& collective);

}  // namespace saturate::plan
