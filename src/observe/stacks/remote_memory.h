// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace saturate::observe {

// Reads memory of another process without stopping it (process_vm_readv(2)). An address that is not
// mapped makes a read fail and nothing else. What is read may change meanwhile.
class RemoteMemory {
 public:
  explicit RemoteMemory(pid_t pid) : pid_(pid) {}

  // Whether all bytes were there. Cost: a system call, about 1 us.
  bool read(uint64_t at, void* to, size_t bytes) const;
  template <class T>
  bool read(uint64_t at, T& to) const {
    return read(at, &to, sizeof to);
  }
  // `bytes` from each of the addresses, one after the other into `to`, in one call; at most kMostParts
  // of them. How many were there: the first that was not ends it.
  size_t read_parts(std::span<const uint64_t> from, size_t bytes, char* to) const;
  static constexpr size_t kMostParts = 512;
  // Of the last read that failed: EPERM when the kernel forbids it, ESRCH when the process has ended.
  int error() const { return error_; }

 private:
  pid_t pid_;
  mutable int error_ = 0;
};

// A file that is mapped into a process.
struct MappedFile {
  uint64_t start = 0;  // of its first byte
  std::string path;
};
// Each file once; empty when this user may not see it.
std::vector<MappedFile> mapped_files(pid_t pid);

// The values of those symbols that a 64-bit ELF file defines, as addresses in a process that has it
// mapped from `start` on. Empty for files of another kind. Cost: reads its tables of symbols.
std::map<std::string, uint64_t> find_symbols(const std::string& path, uint64_t start,
                                             std::span<const std::string_view> names);

}  // namespace saturate::observe
