// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <stop_token>
#include <string>

namespace saturate::data {

// A failure in the middle of a stream; the reader above adds file and line and throws Error.
struct StreamFailure : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Decompressed bytes of one file, in order, in constant memory (zstd windows up to 128 MiB).
class ByteSource {
 public:
  virtual ~ByteSource() = default;
  // Up to `bytes` bytes to `dst`; 0 at the end only. Errors: StreamFailure.
  virtual size_t read(char* dst, size_t bytes) = 0;
};

// Opens a file, or standard input for "-". gzip and zstd are recognised by their first bytes,
// whatever the name; several compressed members in a row are one stream. Errors: Error{io} for a
// file that is missing, a directory, or cannot be read. Who reads from a terminal or a pipe waits;
// asked to `stop`, the source ends there.
std::unique_ptr<ByteSource> open_byte_source(const std::string& path, std::stop_token stop = {});

// Which part of a file to read: about `bytes` of whole lines, see open_sampled_source; 0: all.
struct Sample {
  int64_t bytes = 0;
  uint64_t seed = 0;
};

// How messages name a path: "<standard input>" for "-".
std::string display_name(const std::string& path);

}  // namespace saturate::data
