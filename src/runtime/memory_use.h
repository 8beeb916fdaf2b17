// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstddef>

namespace saturate {

// Bytes that all Buffers of this process hold now, on every device. Any thread.
size_t buffer_bytes() noexcept;

}  // namespace saturate
