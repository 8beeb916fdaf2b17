// SPDX-License-Identifier: Apache-2.0
// For tests only.
#pragma once
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <string_view>

namespace saturate::testing {

/// A fresh folder that goes with the object. In memory where the machine has /dev/shm: syncing to a
/// disk would cost the tests seconds and show nothing more.
class TempFolder {
 public:
  TempFolder() {
    const bool shm = std::filesystem::is_directory("/dev/shm");
    path_ = (shm ? std::string("/dev/shm") : std::filesystem::temp_directory_path().string()) +
            "/saturate-test-XXXXXX";
    if (::mkdtemp(path_.data()) == nullptr) throw std::runtime_error("no folder " + path_);
  }
  ~TempFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;
  const std::string& path() const { return path_; }
  std::string operator/(std::string_view name) const { return path_ + "/" + std::string(name); }

 private:
  std::string path_;
};

inline std::string read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}
inline void write_file(const std::string& path, std::string_view content) {
  std::ofstream(path, std::ios::binary) << content;
}

}  // namespace saturate::testing
