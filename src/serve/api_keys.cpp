// SPDX-License-Identifier: Apache-2.0
#include "serve/api_keys.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstring>
#include <fstream>

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"

namespace saturate::serve {

ApiKeys ApiKeys::read(const std::string& path) {
  std::ifstream file(path);
  if (!file) {
    throw Error(
        Errc::io, "serve",
        fmt::format("--keys {}: {}; give a file with one key a line", path, std::strerror(errno)));
  }
  struct stat info {};
  if (stat(path.c_str(), &info) == 0 && (info.st_mode & S_IROTH) != 0)
    log_warning(fmt::format("{}: every user of this machine may read these keys; chmod 600 {}",
                            path, path));
  ApiKeys keys;
  int64_t number = 0;
  for (std::string line; std::getline(file, line);) {
    ++number;
    const std::string_view key = trim(std::string_view(line).substr(0, line.find('#')));
    if (key.empty()) continue;
    if (!std::ranges::all_of(key, [](char c) { return c > ' ' && c < 127; })) {
      throw Error(
          Errc::invalid_argument, "serve",
          fmt::format("--keys {}: line {} holds blanks or characters beyond ASCII; a key has "
                      "neither",
                      path, number));
    }
    keys.keys_.emplace_back(key);
  }
  if (keys.keys_.empty()) {
    throw Error(Errc::invalid_argument, "serve",
                fmt::format("--keys {} holds no key; give one a line, or leave --keys out to let "
                            "everybody ask",
                            path));
  }
  return keys;
}

bool ApiKeys::holds(std::string_view key) const noexcept {
  bool any = false;
  for (const std::string& each : keys_) {
    unsigned char differ = each.size() == key.size() ? 0 : 1;
    for (size_t i = 0; i < each.size(); ++i)
      differ |= static_cast<unsigned char>(each[i] ^ (i < key.size() ? key[i] : '\0'));
    any = any || differ == 0;
  }
  return any;
}

}  // namespace saturate::serve
