// SPDX-License-Identifier: Apache-2.0
#include "runtime/device.h"

#include <fmt/format.h>
#include <unistd.h>

#include <charconv>
#include <fstream>

#include "base/counted.h"
#include "base/error.h"
#include "runtime/cuda_backend.h"
#include "runtime/device_uuid.h"

namespace saturate {
namespace {

DeviceInfo cpu_info() {
  DeviceInfo info;
  std::ifstream in("/proc/cpuinfo");
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with("model name")) {
      info.name = line.substr(line.find(':') + 2);
      break;
    }
  }
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  info.memory_bytes = static_cast<size_t>(sysconf(_SC_PHYS_PAGES)) * page;
  info.free_bytes = static_cast<size_t>(sysconf(_SC_AVPHYS_PAGES)) * page;
  return info;
}

}  // namespace

int cuda_device_count() noexcept { return cuda::device_count(); }

DeviceInfo device_info(Device device) {
  return device.is_cuda() ? cuda::device_info(device.index) : cpu_info();
}

std::string device_uuid(Device device) {
  return device.is_cuda() ? cuda::device_uuid(device.index) : "";
}

const Capability& capability_of(Device device) noexcept {
  static const Capability none;
  if (!device.is_cuda()) return none;
  static const std::vector<Capability> known = [] {
    std::vector<Capability> all(static_cast<size_t>(cuda_device_count()));
    for (size_t i = 0; i < all.size(); ++i) all[i] = cuda::capability(static_cast<int>(i));
    return all;
  }();
  const auto at = static_cast<size_t>(device.index);
  return at < known.size() ? known[at] : none;
}

Device parse_device(const std::string& text) {
  if (text == "cpu") return {};  // without a look for GPUs, which starts the driver
  const int count = cuda_device_count();
  if (text == "auto") return count > 0 ? Device{DeviceKind::cuda, 0} : Device{};
  int index = 0;
  if (text.starts_with("cuda:")) {
    const auto [end, code] = std::from_chars(text.data() + 5, text.data() + text.size(), index);
    if (code != std::errc() || end != text.data() + text.size() || index < 0) index = -1;
  } else if (text != "cuda") {
    index = -1;
  }
  if (index < 0) {
    throw Error(Errc::invalid_argument, "device",
                fmt::format("\"{}\" is not a device; use auto, cpu, cuda or cuda:N", text));
  }
  if (index >= count) {
    throw Error(Errc::unsupported, "device",
                fmt::format("{} was asked for, but this machine offers {}; see saturate info", text,
                            counted(count, "GPU")));
  }
  return {DeviceKind::cuda, index};
}

std::string to_string(Device d) { return d.is_cuda() ? fmt::format("cuda:{}", d.index) : "cpu"; }

void use_device(Device device) {
  if (device.is_cuda()) cuda::set_device(device.index);
}

}  // namespace saturate
