// SPDX-License-Identifier: Apache-2.0
// Opens the fake driver of tests/top with a script (see tests/top/fake_nvml.cpp).
#pragma once
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>

#include "observe/system/gpu.h"

namespace saturate::observe::testing {

// Null with `why` as GpuMonitor::open. `variant` is fake_nvml or fake_nvml_old.
inline std::unique_ptr<GpuMonitor> open_fake_gpu(const std::string& script, std::string& why,
                                                 const std::string& variant = "fake_nvml") {
  const auto file = std::filesystem::temp_directory_path() /
                    ("saturate-nvml-" + std::to_string(getpid()) + ".json");
  std::ofstream(file) << script;
  setenv("SATURATE_FAKE_NVML", file.c_str(), 1);
  setenv("SATURATE_NVML", (std::string(SATURATE_BINARY_DIR "/test/lib") + variant + ".so").c_str(),
         1);
  auto monitor = GpuMonitor::open(why);
  std::filesystem::remove(file);
  return monitor;
}

}  // namespace saturate::observe::testing
