// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace saturate::kernels {

// The text of sgemm/sgemm_tiled.cuh, put into the program by CMake (cmake/embed.cmake).
extern const char* const kSgemmTiledSource;

}  // namespace saturate::kernels
