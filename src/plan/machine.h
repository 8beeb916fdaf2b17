// SPDX-License-Identifier: Apache-2.0
// What a machine can do, as measured rates: of one device, of the links inside a host and between
// hosts, and how often devices fail. Read from and written to TOML (docs/guide/plan.md).
#pragma once
#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "parallel/collective.h"

namespace saturate::plan {

// Times of one kind of collective among `ranks` ranks, by the bytes of the whole tensor: of an
// all_gather what each rank has afterwards, of a reduce_scatter what it has before, of an all_to_all
// what it sends and receives, of a send_receive what it sends.
struct LinkTable {
  parallel::CollectiveKind kind = parallel::CollectiveKind::all_reduce;
  int ranks = 2;
  std::vector<double> bytes = {}, us = {};  // bytes ascend
};

// One level of the network. Without a table for a kind, latency and rate say its time.
struct Link {
  double latency_us = 0;
  double gbs = 0;  // 1e9 bytes a second that a rank, or an adapter, sends; 0: there is no such link
  int adapters = 0;  // between hosts: of one host, shared by its ranks; 0 inside a host
  std::vector<LinkTable> tables = {};
};

// A product of so many floating-point operations takes (flops + half_gflop * 1e9) / rate, memory
// traffic of so many bytes (bytes + half_mb * 1e6) / bandwidth: half the rate at the size `half`.
struct Compute {
  std::map<DType, double> tflops;  // of large products
  double attention = 0.6;          // of that rate in attention over 1,024 tokens and fewer
  double attention_long = 0;       // of that rate in attention over very long texts; 0: the same
  double half_gflop = 0;
  double bandwidth_gbs = 0;
  double half_mb = 0;
  double launch_us = 0;           // the least that any operation takes
  double beside_collectives = 1;  // rate of computation while a collective runs
};

struct Failures {
  double device_mtbf_hours = 0;  // mean time between failures of one device; 0: not known
  double restart_s = 0;          // from a failure to the first step after it
  double checkpoint_s = 0;       // of a checkpoint, whatever its size
  double checkpoint_gbs = 0;     // 1e9 bytes a second that one host writes
};

struct Machine {
  std::string name, device;  // device: as the driver calls it
  bool gpu = true;
  int64_t memory_bytes = 0;     // that a run may take on one device
  std::optional<double> watts;  // of one device under load
  int devices_per_host = 1;
  double host_copy_gbs = 0;  // between each device and its host, both ways at once, each way
  Compute compute;
  Link inside, between;
  Failures failures;
  std::map<std::string, double> operations;  // measured microseconds by key (cost.h)
};

// Errors: invalid_argument with source:line, what was given, what it takes.
Machine parse_machine(std::string_view toml, const std::string& source);

// A file, or the name of a machine that comes with the program (machine_names). Errors: io,
// invalid_argument.
Machine read_machine(const std::string& path_or_name);
std::vector<std::string_view> machine_names();

// TOML that parse_machine reads back to the same machine.
std::string to_toml(const Machine& machine);

}  // namespace saturate::plan
