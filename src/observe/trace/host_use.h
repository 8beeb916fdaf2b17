// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <string>

#include "observe/trace/record.h"

namespace saturate::observe {

// What the processes of a run did with a file, a peer or a lock from beginning to end, as /proc showed
// it from outside. Spans of threads have the same kind and name.
struct HostUse {
  SpanKind kind = SpanKind::file_read;  // file_read, file_write, network or lock
  std::string name;     // path, with # for digits in which several files differ; peer; holder
  std::string example;  // the first path where `name` stands for several; else ""
  std::string storage;  // file system: "ext4 on /dev/vda"; "" where not known
  bool over_network = false, in_memory = false;  // the file system
  std::string thread;                            // that waited longest: "python3 (4711)"
  int64_t files = 1;                             // different paths
  int64_t bytes = 0, storage_bytes = 0;          // read or written; of those read, from the storage
  int64_t waited_ns = 0;              // sum over threads, copies to and from the page cache too
  int64_t threads = 0;                // that were seen to wait or copy
  int64_t episodes = 0;               // times of activity with over 0.3 s without any between
  int64_t first_ns = 0, last_ns = 0;  // of activity, on the capture's clock
  int64_t last_start_ns = 0;          // of the last episode
  auto operator<=>(const HostUse&) const = default;
};

}  // namespace saturate::observe
