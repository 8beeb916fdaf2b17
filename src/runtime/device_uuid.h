// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>

#include "runtime/device.h"

namespace saturate {

// "GPU-" and 32 hexadecimal digits in five groups, as NVML writes it: which of a machine's GPUs this
// is, whatever CUDA_VISIBLE_DEVICES says. "" for the CPU. Errors: device.
std::string device_uuid(Device device);

}  // namespace saturate
