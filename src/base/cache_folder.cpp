// SPDX-License-Identifier: Apache-2.0
#include "base/cache_folder.h"

#include <cstdlib>

namespace saturate {

std::string user_cache_folder() {
  const auto set = [](const char* name) {
    const char* v = std::getenv(name);
    return std::string(v != nullptr ? v : "");
  };
  if (const std::string own = set("SATURATE_CACHE"); !own.empty()) return own;
  if (const std::string xdg = set("XDG_CACHE_HOME"); !xdg.empty()) return xdg + "/saturate";
  if (const std::string home = set("HOME"); !home.empty()) return home + "/.cache/saturate";
  return "";
}

}  // namespace saturate
