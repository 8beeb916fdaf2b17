// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "observe/capture/cupti_abi.h"

namespace saturate::observe::cupti {

// CUPTI before 13.3 has one client: whoever registers callbacks last gets all records, those of
// the other's buffers too, and a profiler of the program itself (torch.profiler, say) then sees
// nothing of the GPU. So the capture must be out of the way before that profiler registers. From
// 13.3 on there may be several, who all speak its newer interface; one who speaks the older, or
// wants to be alone, finds it closed while another is there.
struct OtherProfilers {
  void (*take_over)();  // one comes that cannot be there beside us
  void (*join)();       // one comes that can
  void (*subscribe)();  // one comes that wants the callbacks, of which CUPTI has one client
};

// Arranges that one of these is called when anything else in the process registers callbacks with
// CUPTI or subscribes, on its thread and before the call goes on: by changing the entries
// in the import tables of the libraries that are loaded, and in the symbol table of libcupti for
// those that search for it later. Changes this process's memory only. Call it again for libraries
// that were loaded since; cheap when there are none. `version`: CUPTI's.
// ELF on x86-64 and 64-bit Arm; does nothing elsewhere. Not for several threads at once.
void watch_other_profilers(const Api& api, uint32_t version, const OtherProfilers& others);

}  // namespace saturate::observe::cupti
