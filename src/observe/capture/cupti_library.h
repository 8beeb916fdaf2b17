// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>

#include "observe/capture/cupti_abi.h"

namespace saturate::observe::cupti {

// Opens the libcupti of this process: `path` if it is not empty; else the one that is loaded; else
// the one of the Python packages beside a loaded libcudart, libtorch or libnvrtc; else by the
// loader's own search and in the usual places of the toolkit. Never two copies in one process,
// where that can be helped: each would keep its own records. Where that one is older than `wanted`
// (as CUPTI counts, 130500 for 13.5; 0: any will do), one that is not is looked for beside this
// library, in the Python packages and in the toolkit's places, and taken beside the loaded one.
// Returns false and sets `problem` (one line) when there is none or it lacks an entry point.
bool load(const std::string& path, uint32_t wanted, Api& api, std::string& problem);

}  // namespace saturate::observe::cupti
