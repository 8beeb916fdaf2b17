// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>

#include "observe/capture/cupti_abi.h"

namespace saturate::observe::cupti {

// Makes `api` one of several clients of CUPTI, whose entry points then are those of its newer
// interface with our handle in them; `unsubscribe` leaves again. For CUPTI 13.3 and a driver of
// its time, which refuse the older interface from anybody as long as the newer is used: so only where
// a loaded library knows the newer one. Else `api` stays as it is, and `why_not` says
// why in a sentence for the reader of the report, empty where CUPTI is older.
// Callbacks that are enabled for `api.subscriber` come to `on_callback`.
bool join_several_clients(Api& api, uint32_t version, Callback on_callback, std::string& why_not);

}  // namespace saturate::observe::cupti
