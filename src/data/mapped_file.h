// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstddef>
#include <string>
#include <utility>

namespace saturate::data {

// A file mapped read-only; move only. The pages are the system's cache, not this process's memory.
class MappedFile {
 public:
  MappedFile() = default;
  explicit MappedFile(const std::string& path);  // Errors: Error{io}
  ~MappedFile();
  MappedFile(MappedFile&& o) noexcept
      : data_(std::exchange(o.data_, nullptr)), bytes_(std::exchange(o.bytes_, 0)) {}
  MappedFile& operator=(MappedFile&& o) noexcept {
    std::swap(data_, o.data_);
    std::swap(bytes_, o.bytes_);
    return *this;
  }
  const unsigned char* data() const noexcept { return data_; }
  size_t bytes() const noexcept { return bytes_; }

 private:
  const unsigned char* data_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace saturate::data
