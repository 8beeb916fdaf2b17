// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>

#include "runtime/device.h"

namespace saturate::python {

// {0, length, 2 length, ...}, `sequences` + 1 numbers, in the device's memory: where the sequences
// of a dense batch begin in packed rows.
//
// Made once for a device and length (and again, at least twice as long, when a longer batch comes)
// and kept until the process ends, so that captured graphs may hold the address. Making them
// allocates and waits for a stream of its own; that is allowed while another stream is captured.
// Errors    out_of_memory, device; invalid_argument when sequences * length passes int32.
const int32_t* uniform_offsets(Device device, int64_t sequences, int64_t length);

}  // namespace saturate::python
