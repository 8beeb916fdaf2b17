// SPDX-License-Identifier: Apache-2.0
// Files inside a zip archive that stores them as they are, which is how PyTorch and NumPy write them.
#pragma once
#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace saturate::model {

struct ZipEntry {
  std::string_view name;            // borrowed from the archive
  std::span<const std::byte> data;  // likewise
};

// Whether the bytes begin as a zip archive does.
bool is_zip(std::span<const std::byte> file) noexcept;

// All files of an archive, with 64-bit sizes too. Nothing is unpacked. Errors: invalid_argument naming
// `where`: bytes that are no whole archive, files beyond its end, compressed or encrypted ones.
// Source: PKWARE APPNOTE 6.3.10, sections 4.3 and 4.5.3.
std::vector<ZipEntry> zip_entries(std::span<const std::byte> file, const std::string& where);

}  // namespace saturate::model
