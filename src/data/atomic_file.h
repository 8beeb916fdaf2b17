// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace saturate::data {

// A file that appears under its name whole or not at all: written to a temporary name in the same
// folder, synced, then renamed. Without commit() the destructor removes it.
// Errors: Error{io} with the path and the system's reason (a full disk, for example).
class AtomicFile {
 public:
  explicit AtomicFile(std::string path);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void append(const void* data, size_t bytes);  // buffered
  void overwrite(const void* data, size_t bytes, int64_t offset);
  // Appends all that was written to `other`; `other` stays as it is.
  void append_file(AtomicFile& other);
  int64_t size() const noexcept { return size_; }
  void commit();

 private:
  void flush();
  void write_all(const void* data, size_t bytes, int64_t offset);
  [[noreturn]] void fail(const char* action) const;

  std::string path_, temporary_;
  int fd_ = -1;
  int64_t size_ = 0;  // flushed and buffered bytes
  std::vector<char> buffer_;
};

}  // namespace saturate::data
