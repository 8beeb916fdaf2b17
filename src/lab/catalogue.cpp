// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/text.h"
#include "lab/program.h"

namespace saturate::lab {
namespace {

constexpr std::array kCatalogue = {
    Entry{"launch_loop", "200 kernels of a few microseconds, launched one by one",
          "the same kernels in CUDA graphs of 50", "launch_bound"},
    Entry{"slow_loader", "one thread prepares the batches, slower than the device uses them up",
          "eight threads prepare batches", "input_bound"},
    Entry{"pageable_copies", "each step copies its batch from pageable memory",
          "pinned memory, one batch ahead on a stream of its own", "copy_bound"},
    Entry{"sync_each_step", "the host waits for the device after every kernel",
          "the host waits at the end only", "sync_bound"},
    Entry{"allocation_each_step", "each step allocates its buffer and frees it again",
          "the buffer is allocated once", "allocation_bound"},
    Entry{"host_work", "the host computes between the steps, and the device waits for it",
          "no host work in the loop", "host_bound"},
    Entry{"throttled_pool", "eight threads prepare each step, but share one core",
          "the threads may use every core", "host_bound"},
    Entry{"two_streams", "half of the work waits for the other half on another stream",
          "the halves do not wait for each other", "under_filled"},
    Entry{"growing_step", "each step goes through a list that every step makes longer",
          "the list's sum is kept as it grows", "host_bound"},
    Entry{"memory_bound", "kernels that read and write memory at full speed", "", "gpu_bound"},
    Entry{"gpu_bound", "long kernels of arithmetic, queued ahead", "", "gpu_bound"},
};

}  // namespace

std::span<const Entry> catalogue() { return kCatalogue; }

const Entry& find_entry(std::string_view name) {
  for (const Entry& e : kCatalogue) {
    if (e.name == name) return e;
  }
  std::vector<std::string_view> names;
  for (const Entry& e : kCatalogue) names.push_back(e.name);
  throw Error(Errc::invalid_argument, "lab",
              "no program '" + std::string(name) + "'" + did_you_mean(name, names) +
                  " (saturate lab list names all)");
}

}  // namespace saturate::lab
