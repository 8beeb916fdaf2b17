// SPDX-License-Identifier: Apache-2.0
#include "observe/capture/settings.h"

#include <algorithm>
#include <cstdlib>

namespace saturate::observe::cupti {
namespace {

std::string text(const char* variable) {
  const char* value = std::getenv(variable);
  return value == nullptr ? "" : value;
}

int64_t milliseconds(const char* variable) {
  return std::max<int64_t>(0, std::strtoll(text(variable).c_str(), nullptr, 10));
}

}  // namespace

Settings read_settings() {
  return {text(kFolderVariable),        text(kCuptiVariable),
          milliseconds(kDelayVariable), milliseconds(kDurationVariable),
          text(kNodesVariable) == "1",  text(kMemoryVariable) == "1",
          text(kWithoutVariable)};
}

bool Settings::lacks(std::string_view part) const {
  return ("," + without + ",").find("," + std::string(part) + ",") != std::string::npos;
}

}  // namespace saturate::observe::cupti
