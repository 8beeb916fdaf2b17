// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>

namespace saturate {

// Where this user's measurements of the machine lie: $SATURATE_CACHE, $XDG_CACHE_HOME/saturate or
// ~/.cache/saturate; "" when none of them is set. It may not exist yet.
std::string user_cache_folder();

}  // namespace saturate
