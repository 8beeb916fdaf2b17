// SPDX-License-Identifier: Apache-2.0
#include "base/append_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/durable_file.h"
#include "base/error.h"

namespace saturate {

AppendFile::AppendFile(std::string path, Content content) : path_(std::move(path)) {
  const int truncate = content == Content::emptied ? O_TRUNC : 0;
  fd_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | truncate, 0644);
  if (fd_ >= 0) bytes_ = ::lseek(fd_, 0, SEEK_END);
  if (fd_ >= 0 && bytes_ >= 0) return;
  const int error_number = errno;
  if (fd_ >= 0) ::close(fd_);
  throw Error(
      Errc::io, "write",
      fmt::format("{}: {}; is the folder there and writable?", path_, std::strerror(error_number)));
}

AppendFile::~AppendFile() { ::close(fd_); }

bool AppendFile::in_place() const noexcept { return is_open_at(fd_, path_); }

void AppendFile::append(std::string_view record) {
  for (size_t done = 0; done < record.size();) {
    const ssize_t n = ::write(fd_, record.data() + done, record.size() - done);
    if (n >= 0) {
      done += static_cast<size_t>(n);
      continue;
    }
    if (errno == EINTR) continue;
    const int error_number = errno;
    const bool cut = ::ftruncate(fd_, static_cast<off_t>(bytes_)) == 0;
    throw Error(Errc::io, "write",
                fmt::format("{}: {}; {}{}", path_, std::strerror(error_number),
                            error_number == EFBIG ? "raise the limit of a file's size (ulimit -f)"
                                                  : "free some space",
                            cut ? "" : " and remove what is behind its last whole record"));
  }
  bytes_ += static_cast<int64_t>(record.size());
}

}  // namespace saturate
