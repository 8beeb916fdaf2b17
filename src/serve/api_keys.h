// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace saturate::serve {

/// The keys that open a server. Empty: everybody may ask.
class ApiKeys {
 public:
  ApiKeys() = default;
  // One key a line, of visible ASCII characters; blank lines and what follows a # are left out. Warns of
  // a file that others may read. Errors: io; invalid_argument for a file without a key, or with one
  // that no header can carry.
  static ApiKeys read(const std::string& path);

  bool required() const noexcept { return !keys_.empty(); }
  // In time that tells only how long the keys are.
  bool holds(std::string_view key) const noexcept;

 private:
  std::vector<std::string> keys_;
};

}  // namespace saturate::serve
