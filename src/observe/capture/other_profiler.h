// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "observe/capture/cupti_abi.h"

namespace saturate::observe::cupti {

// CUPTI before 13.3 has one client: whoever registers callbacks last gets all records, those of
// the other's buffers too, and a profiler of the program itself (torch.profiler, say) then sees
// nothing of the GPU. So the capture must be out of the way before that profiler registers.
//
// Arranges that `before_register` is called when anything else in the process calls
// cuptiActivityRegisterCallbacks, on its thread and before the call goes on: by changing the entry
// in the import tables of the libraries that are loaded, and in the symbol table of libcupti for
// those that search for it later. Changes this process's memory only. Call it again for libraries that
// were loaded since; cheap when there are none.
// ELF on x86-64 and 64-bit Arm; does nothing elsewhere. Not for several threads at once.
void watch_other_profilers(const Api& api, void (*before_register)());

}  // namespace saturate::observe::cupti
