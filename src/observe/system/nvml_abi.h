// SPDX-License-Identifier: Apache-2.0
// The part of NVML's binary interface that is used, so that the program builds where no driver and
// no toolkit is. The library itself is opened at run time.
// Source: NVIDIA, NVML API Reference Guide (docs.nvidia.com/deploy/nvml-api), structures as of
// R580. Only structures whose layout is the same since the version named in the symbol are
// declared.
#pragma once
#include <cstdint>

namespace saturate::observe::nvml {

using Handle = struct Opaque*;

enum Return : int {
  kSuccess = 0,
  kInvalidArgument = 2,
  kNotSupported = 3,
  kNoPermission = 4,
  kNotFound = 6,
  kInsufficientSize = 7,
  kDriverNotLoaded = 9,
  kGpuIsLost = 15,
  kResetRequired = 16,
  kLibraryMismatch = 18,
  kUnknown = 999,
};

struct Utilization {
  unsigned gpu, memory;  // percent
};
struct Memory {
  unsigned long long total, free, used;  // bytes
};
// used: without what the driver keeps for itself, as nvidia-smi prints it.
struct MemoryV2 {
  unsigned version;
  unsigned long long total, reserved, free, used;
};
constexpr unsigned kMemoryV2 = sizeof(MemoryV2) | (2u << 24);

struct ProcessInfo {  // _v2 and _v3
  unsigned pid;
  unsigned long long used_bytes;  // all ones: not known
  unsigned gpu_instance, compute_instance;
};
struct ProcessSample {
  unsigned pid;
  unsigned long long time_us;
  unsigned sm, memory, encoder, decoder;  // percent
};

using GpmSample = struct OpaqueSample*;
struct GpmSupport {
  unsigned version, supported;
};
struct GpmMetric {
  unsigned id;
  Return result;
  double value;
  const char *short_name, *long_name, *unit;
};
// The library reads and writes only the first `count` metrics; it was built with a larger array.
struct GpmQuery {
  unsigned version, count;
  GpmSample first, second;
  GpmMetric metrics[400];
};

enum ClockKind : int { kClockGraphics = 0, kClockSm = 1, kClockMemory = 2 };
enum PcieCounter : int { kPcieSent = 0, kPcieReceived = 1 };
enum GpmId : unsigned {
  kGpmGraphics = 1,
  kGpmSm = 2,
  kGpmOccupancy = 3,
  kGpmTensor = 5,
  kGpmDram = 10,
  kGpmPcieSent = 20,        // MiB/s
  kGpmPcieReceived = 21,    // MiB/s
  kGpmNvlinkReceived = 60,  // MiB/s, all links
  kGpmNvlinkSent = 61,      // MiB/s, all links
};

static_assert(sizeof(MemoryV2) == 40 && sizeof(ProcessInfo) == 24 && sizeof(ProcessSample) == 32 &&
              sizeof(GpmMetric) == 40);

}  // namespace saturate::observe::nvml
