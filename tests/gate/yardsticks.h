// SPDX-License-Identifier: Apache-2.0
// Fixed work that the gate's cases are measured by: its time says how fast the machine is just now.
#pragma once
#include <cstddef>
#include <cstdint>

namespace saturate::gate {

// memcpy of so many bytes: the memory.
void copy(char* to, const char* from, size_t bytes);
// c = a b of n x n floats, n a multiple of 16, by tiles that stay in registers: the vector units.
void product(float* c, const float* a, const float* b, int n);
// std::sort of a copy: a scalar core with its branches and caches.
void sort(uint32_t* to, const uint32_t* from, size_t count);

}  // namespace saturate::gate
