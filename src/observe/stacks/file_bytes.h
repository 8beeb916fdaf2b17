// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <string>

namespace saturate::observe {

// A file in memory; empty when it cannot be mapped.
class FileBytes {
 public:
  explicit FileBytes(const std::string& path) {
    const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    struct stat info {};
    if (fd >= 0 && ::fstat(fd, &info) == 0 && S_ISREG(info.st_mode) && info.st_size > 0) {
      size_ = static_cast<size_t>(info.st_size);
      data_ = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, fd, 0);
    }
    if (fd >= 0) ::close(fd);
  }
  ~FileBytes() {
    if (data_ != MAP_FAILED) ::munmap(data_, size_);
  }
  FileBytes(const FileBytes&) = delete;
  FileBytes& operator=(const FileBytes&) = delete;

  // Null when the file ends before.
  template <class T>
  const T* at(uint64_t offset, uint64_t count = 1) const {
    if (data_ == MAP_FAILED || offset > size_ || count > (size_ - offset) / sizeof(T))
      return nullptr;
    return reinterpret_cast<const T*>(static_cast<const char*>(data_) + offset);
  }

 private:
  void* data_ = MAP_FAILED;
  size_t size_ = 0;
};

}  // namespace saturate::observe
