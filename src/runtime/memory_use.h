// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstddef>

namespace saturate {

// Bytes that all Buffers of this process hold now, on every device. Any thread.
size_t buffer_bytes() noexcept;

// Bytes that this process can still take of the host's memory: what the kernel calls available, within
// the bound of its container. Without an answer from the kernel, all there could be.
size_t host_bytes_left() noexcept;

}  // namespace saturate
