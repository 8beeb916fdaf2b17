// SPDX-License-Identifier: Apache-2.0
#include "data/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/error.h"

namespace saturate::data {

MappedFile::MappedFile(const std::string& path) {
  const auto fail = [&] { throw Error(Errc::io, "map", path + ": " + std::strerror(errno)); };
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) fail();
  struct stat info {};
  if (::fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
    ::close(fd);
    throw Error(Errc::io, "map", path + ": is not a regular file");
  }
  bytes_ = static_cast<size_t>(info.st_size);
  void* at = bytes_ == 0 ? nullptr : ::mmap(nullptr, bytes_, PROT_READ, MAP_SHARED, fd, 0);
  const int code = errno;
  ::close(fd);
  errno = code;
  if (at == MAP_FAILED) fail();
  data_ = static_cast<const unsigned char*>(at);
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<unsigned char*>(data_), bytes_);
}

}  // namespace saturate::data
