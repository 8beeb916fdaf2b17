// SPDX-License-Identifier: Apache-2.0
// Files inside a zip archive, stored as they are, which is how PyTorch and NumPy's savez write them, or
// deflated (savez_compressed).
#pragma once
#include <cstddef>
#include <deque>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace saturate::model {

struct ZipEntry {
  std::string_view name;            // borrowed from the archive
  std::span<const std::byte> data;  // likewise, or from the caller's `unpacked`
};

// Whether the bytes begin as a zip archive does.
bool is_zip(std::span<const std::byte> file) noexcept;

// All files of an archive, with 64-bit sizes too. Deflated ones are unpacked into `unpacked`, which is
// at most 1,032 times as large as the archive; without it they are refused. Errors: invalid_argument
// naming `where`: bytes that are no whole archive, files beyond its end, otherwise compressed, encrypted
// or damaged ones.
// Source: PKWARE APPNOTE 6.3.10, sections 4.3 and 4.5.3.
std::vector<ZipEntry> zip_entries(std::span<const std::byte> file, const std::string& where,
                                  std::deque<std::vector<std::byte>>* unpacked = nullptr);

}  // namespace saturate::model
