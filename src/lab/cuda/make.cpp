// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <utility>

#include "base/error.h"
#include "lab/cuda/rig.h"

namespace saturate::lab {

std::unique_ptr<Program> make_program(std::string_view name, Remedy remedy, Device device) {
  using Make = std::unique_ptr<Program> (*)(Remedy, Device);
  constexpr std::array<std::pair<std::string_view, Make>, 12> kMakers = {{
      {"launch_loop", make_launch_loop},
      {"launch_batch", make_launch_batch},
      {"slow_loader", make_slow_loader},
      {"pageable_copies", make_pageable_copies},
      {"sync_each_step", make_sync_each_step},
      {"allocation_each_step", make_allocation_each_step},
      {"host_work", make_host_work},
      {"throttled_pool", make_throttled_pool},
      {"two_streams", make_two_streams},
      {"growing_step", make_growing_step},
      {"memory_bound", make_memory_bound},
      {"gpu_bound", make_gpu_bound},
  }};
  if (!device.is_cuda())
    throw Error(Errc::unsupported, "lab",
                "the programs need a GPU and none was found; saturate check says what is missing");
  for (const auto& [known, make] : kMakers) {
    if (known != name) continue;
    use_device(device);
    return make(remedy, device);
  }
  find_entry(name);
  throw Error(Errc::internal, "lab", "a program of the catalogue has no maker");
}

}  // namespace saturate::lab
