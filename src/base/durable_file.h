// SPDX-License-Identifier: Apache-2.0
// Files that are either the old content or the whole new content, whatever happens in between.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace saturate {

// Writes path + ".tmp", and on commit() syncs it and renames it over `path`. Without commit the old
// file stays as it was and the temporary one is removed. One writer per path at a time. What is no
// regular file (/dev/null, a terminal, a pipe) is written to where it is, never replaced.
// Errors    io, naming the file, the cause, and for a full disk the bytes needed and free.
class DurableFile {
 public:
  // bytes > 0 reserves that much at once where the file system can, so that a full disk shows
  // before any work is done.
  explicit DurableFile(std::string path, uint64_t bytes = 0);
  // One of several writers of a file that is there, each of its own places: written to where it is,
  // so that the old content is lost. commit() syncs what this one wrote.
  struct Join {};
  DurableFile(std::string path, Join);
  ~DurableFile();
  DurableFile(const DurableFile&) = delete;
  DurableFile& operator=(const DurableFile&) = delete;
  void write(const void* data, size_t bytes);
  // At a place of a regular file; every byte of the file is written once, here or by write().
  void write_at(uint64_t place, const void* data, size_t bytes);
  // What was reserved and not written is cut off, or kept for others that join.
  enum class Rest { cut, kept };
  void commit(Rest rest = Rest::cut);
  uint64_t bytes_written() const noexcept { return written_; }

 private:
  template <class Call>
  void put(const void* data, size_t bytes, const Call& call);
  [[noreturn]] void fail(const char* action, int error_number) const;

  std::string path_;
  int fd_ = -1;
  bool in_place_ = false, joined_ = false;
  uint64_t expected_ = 0;
  uint64_t written_ = 0;
};

void write_durable_file(const std::string& path, std::string_view content);

// Makes what was created, renamed or removed in `folder` survive a power cut. Errors: io.
void sync_folder(const std::string& folder);

// Makes the content of one existing file survive a power cut. Errors: io.
void sync_file(const std::string& path);

// Whether the open file `fd` is the one under `path`: false once that was deleted or replaced.
bool is_open_at(int fd, const std::string& path) noexcept;

// Bytes that this user can still write on the file system of `path`; 0 when that is not known.
uint64_t free_disk_bytes(const std::string& path) noexcept;

}  // namespace saturate
