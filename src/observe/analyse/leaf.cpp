// SPDX-License-Identifier: Apache-2.0
#include "observe/analyse/leaf.h"

#include <numeric>

namespace saturate::observe {
namespace {

constexpr std::array<LeafInfo, kLeaves> kInfo = {{
    {"tensor", "tensor-core kernels",
     "Matrix products, convolutions and attention on tensor cores."},
    {"matrix", "matrix kernels, no tensor cores",
     "Matrix products, convolutions and attention whose names show no tensor cores."},
    {"memory_bound", "memory-bound kernels",
     "Elementwise, reduction, normalisation and optimizer kernels: bound by memory traffic."},
    {"other_kernel", "other kernels", "Kernels whose names say nothing about their kind."},
    {"graph", "graph launches",
     "Graph launches that were recorded as a whole, without their kernels."},
    {"low_grid", "low-grid kernels",
     "Kernels with fewer blocks than three quarters of the device's multiprocessors."},
    {"tiny", "tiny kernels",
     "Kernels and graphs shorter than 10 us: starting them costs about as much as running them."},
    {"communication", "exposed communication",
     "Collectives and transfers between devices while nothing was computed."},
    {"copy_in_pageable", "exposed copy to device, pageable",
     "Copies from pageable host memory while nothing was computed."},
    {"copy_in", "exposed copy to device",
     "Copies from pinned (or unknown) host memory while nothing was computed."},
    {"copy_out_pageable", "exposed copy to host, pageable",
     "Copies to pageable host memory while nothing was computed."},
    {"copy_out", "exposed copy to host",
     "Copies to pinned (or unknown) host memory while nothing was computed."},
    {"copy_device", "exposed copy on devices",
     "Copies within or between devices while nothing was computed."},
    {"fill", "exposed fill", "Memory being set while nothing else ran."},
    {"launch", "launching",
     "The host was inside the CUDA call that issues the next work, or one like it."},
    {"launch_latency", "launch latency",
     "The work was issued and about to start: at most 10 us of each gap."},
    {"host_code", "host code",
     "The host ran its own code (Python, framework) before it issued the next work."},
    {"loader", "waiting for data", "The host waited for its data loader."},
    {"sync", "synchronisation",
     "The device was done, and the host had not yet returned from waiting for it."},
    {"after_sync", "host code after a synchronisation",
     "Host code that could have run ahead, had a synchronisation not emptied the queue."},
    {"blocking_copy", "blocking copy call", "The host was inside a copy that waits for its end."},
    {"allocator", "allocation", "The host was allocating or freeing device or pinned memory."},
    {"code_load", "code loading", "Kernels or graphs were loaded, compiled or instantiated."},
    {"other_call", "other CUDA calls", "The host was inside a CUDA call of another kind."},
    {"blocked", "host blocked",
     "The host waited in a system call, not known to be its data loader."},
    {"file_read", "reading a file", "The host read a file, from a disk or the page cache."},
    {"file_write", "writing a file", "The host wrote a file, or waited until it was on the disk."},
    {"network", "network", "The host waited for a peer on the network."},
    {"lock", "lock", "The host waited for a lock that another thread held."},
    {"runnable", "no core for the host", "The host was ready to run, but was given no core."},
    {"gil", "interpreter lock", "The host waited for the interpreter's lock."},
    {"dependency", "dependency",
     "The work was issued but waited: for another stream, another device or another rank."},
    {"tool", "recording overhead", "The tool that recorded the trace was busy."},
    {"lost", "capture lost", "Nothing was recorded here."},
    {"unknown", "unknown", "No record says which call issued the next work."},
}};

}  // namespace

const LeafInfo& leaf_info(Leaf leaf) { return kInfo[static_cast<size_t>(leaf)]; }

int64_t Budget::busy_ns() const {
  return std::accumulate(ns.begin(), ns.begin() + kBusyLeaves, int64_t{0});
}

int64_t Budget::total_ns() const { return std::accumulate(ns.begin(), ns.end(), int64_t{0}); }

Budget& Budget::operator+=(const Budget& other) {
  for (size_t i = 0; i < kLeaves; ++i) ns[i] += other.ns[i];
  return *this;
}

}  // namespace saturate::observe
