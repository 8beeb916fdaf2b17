// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace saturate {

// A file that grows record by record. A record that cannot be written leaves nothing of itself
// behind, so the next one may follow once there is room again. One writer.
class AppendFile {
 public:
  enum class Content { kept, emptied };
  // Creates the file where there is none. Errors: io.
  explicit AppendFile(std::string path, Content content = Content::kept);
  ~AppendFile();
  AppendFile(const AppendFile&) = delete;
  AppendFile& operator=(const AppendFile&) = delete;

  // Hands the record to the operating system. Errors: io, naming the file and the cause.
  void append(std::string_view record);
  const std::string& path() const noexcept { return path_; }
  bool in_place() const noexcept;  // false after the file was deleted or replaced

 private:
  std::string path_;
  int fd_ = -1;
  int64_t bytes_ = 0;  // of whole records
};

}  // namespace saturate
