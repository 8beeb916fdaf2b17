// SPDX-License-Identifier: Apache-2.0
// This machine's rates, links and operations, measured.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "base/config.h"
#include "parallel/communicator.h"
#include "plan/machine.h"

namespace saturate::plan {

// Products, memory traffic and launches of one device; no links. About a second. Errors: device.
Machine measure_device(Device device);

// Times of each collective by size among `group`, which all its ranks call alike, others of the
// communicator measure their own at the same time. On a GPU from captured graphs. Medians; the
// slowest rank counts. Collective over all ranks.
std::vector<LinkTable> measure_links(parallel::Communicator& ranks, const parallel::Group& group,
                                     Device device);

struct LinkTables {
  std::vector<LinkTable> inside, between;  // hosts
};
// Of all links of `ranks`, of which `local` follow each other on each host. Collective.
LinkTables measure_all_links(parallel::Communicator& ranks, int local, Device device);

// Puts tables in place of those of the same kind and ranks, and makes latency and rate theirs.
void replace_tables(Link& link, const std::vector<LinkTable>& tables);

// The same for both levels of a machine with `hosts` hosts of `local` ranks.
void replace_links(Machine& machine, const LinkTables& links, int local, int hosts);

struct MeasuredOperation {
  std::string key;  // operation_key
  int64_t count = 0;
  double us = 0;  // of one
};
// Runs the list of one rank of config.parallel on `ranks` ranks alone on the device, without its
// collectives, and times each operation: by events on a GPU, less what they cost beside a graph of
// the whole list; by the clock on the CPU. In the order of the list. Errors: out_of_memory and those
// of record_rank.
std::vector<MeasuredOperation> measure_operations(const RunConfig& config, int64_t length,
                                                  int ranks, int rank, Device device);

}  // namespace saturate::plan
