// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace saturate::observe {

// The bytes of a file or of memory, decompressed, in order.
class Input {
 public:
  virtual ~Input() = default;
  // Up to `bytes` bytes to `dst`; 0 at the end only. Errors     Error{io} when the file is cut,
  // corrupt or cannot be read, with the position.
  virtual size_t read(char* dst, size_t bytes) = 0;
  const std::string& name() const { return name_; }

 protected:
  explicit Input(std::string name) : name_(std::move(name)) {}

 private:
  std::string name_;  // of the file, for messages
};

// Plain or gzip, detected by the first bytes. Errors     Error{io} for a missing file or a directory.
std::unique_ptr<Input> open_input(const std::string& path);
// `bytes` must outlive the input.
std::unique_ptr<Input> memory_input(const void* bytes, size_t size, std::string name);

}  // namespace saturate::observe
