// SPDX-License-Identifier: Apache-2.0
#include "data/atomic_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "base/error.h"

namespace saturate::data {

constexpr size_t kBufferBytes = size_t{1} << 20;

AtomicFile::AtomicFile(std::string path)
    : path_(std::move(path)), temporary_(fmt::format("{}.tmp.{}", path_, ::getpid())) {
  fd_ = ::open(temporary_.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd_ < 0) fail("create");
  buffer_.reserve(kBufferBytes);
}

AtomicFile::~AtomicFile() {
  if (fd_ < 0) return;
  ::close(fd_);
  ::unlink(temporary_.c_str());
}

void AtomicFile::fail(const char* action) const {
  const int code = errno;
  throw Error(
      Errc::io, "write",
      fmt::format("cannot {} {}: {}; {}", action, temporary_, std::strerror(code),
                  code == ENOSPC || code == EDQUOT ? "free some space or choose another folder"
                                                   : "check the folder and its permissions"));
}

void AtomicFile::write_all(const void* data, size_t bytes, int64_t offset) {
  const char* p = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t n = ::pwrite(fd_, p, bytes, offset);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) fail("write");
    p += n;
    offset += n;
    bytes -= static_cast<size_t>(n);
  }
}

void AtomicFile::flush() {
  write_all(buffer_.data(), buffer_.size(), size_ - static_cast<int64_t>(buffer_.size()));
  buffer_.clear();
}

void AtomicFile::append(const void* data, size_t bytes) {
  if (buffer_.size() + bytes > kBufferBytes) flush();
  size_ += static_cast<int64_t>(bytes);
  if (bytes > kBufferBytes) {
    write_all(data, bytes, size_ - static_cast<int64_t>(bytes));
    return;
  }
  const char* p = static_cast<const char*>(data);
  buffer_.insert(buffer_.end(), p, p + bytes);
}

void AtomicFile::overwrite(const void* data, size_t bytes, int64_t offset) {
  flush();
  SAT_ASSERT(offset >= 0 && offset + static_cast<int64_t>(bytes) <= size_);
  write_all(data, bytes, offset);
}

void AtomicFile::append_file(AtomicFile& other) {
  other.flush();
  std::vector<char> chunk(kBufferBytes);
  for (int64_t at = 0; at < other.size_;) {
    const ssize_t n = ::pread(other.fd_, chunk.data(), chunk.size(), at);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) other.fail("read back");
    append(chunk.data(), static_cast<size_t>(n));
    at += n;
  }
}

void AtomicFile::commit() {
  flush();
  if (::fsync(fd_) != 0) fail("sync");
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) fail("rename");
  ::close(fd_);
  fd_ = -1;
  // The name itself must survive a power cut; a folder that cannot be synced is not an error.
  std::string folder = std::filesystem::path(path_).parent_path().string();
  if (folder.empty()) folder = ".";
  if (const int dir = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); dir >= 0) {
    ::fsync(dir);
    ::close(dir);
  }
}

}  // namespace saturate::data
