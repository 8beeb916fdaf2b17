// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <map>
#include <string>

namespace saturate::serve {

/// Tells whether the files of a folder are still those that were there at first, by size, time and
/// identity. What was read of them is in memory and stays as it was.
class FolderWatch {
 public:
  explicit FolderWatch(std::string folder);
  // What is different now, for people ("model.safetensors was written again"), or "".
  std::string change() const;

 private:
  struct File {
    int64_t size, time_ns;
    uint64_t inode;
    bool operator==(const File&) const = default;
  };
  static std::map<std::string, File> look(const std::string& folder);
  const std::string folder_;
  const std::map<std::string, File> first_;
};

}  // namespace saturate::serve
