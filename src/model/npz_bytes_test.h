// SPDX-License-Identifier: Apache-2.0
// Archives of arrays for tests, put together by the formats' rules.
#pragma once
#include <zlib.h>

#include <cstring>
#include <span>
#include <string>
#include <vector>

namespace saturate::model {

struct NpyEntry {
  std::string name, descr, shape;  // "<f4", "(2, 3)"
  std::string data;
};

inline std::string npy_bytes(const NpyEntry& e) {
  std::string header =
      "{'descr': '" + e.descr + "', 'fortran_order': False, 'shape': " + e.shape + ", }";
  while ((10 + header.size() + 1) % 64 != 0) header += ' ';
  header += '\n';
  return std::string("\x93NUMPY\x01\x00", 8) + static_cast<char>(header.size() & 0xFF) +
         static_cast<char>(header.size() >> 8) + header + e.data;
}

inline std::string deflated(const std::string& plain) {
  z_stream z{};
  deflateInit2(&z, 9, Z_DEFLATED, -MAX_WBITS, 8, Z_DEFAULT_STRATEGY);
  std::string out(deflateBound(&z, plain.size()) + 16, '\0');
  z.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(plain.data()));
  z.avail_in = static_cast<uInt>(plain.size());
  z.next_out = reinterpret_cast<Bytef*>(out.data());
  z.avail_out = static_cast<uInt>(out.size());
  deflate(&z, Z_FINISH);
  out.resize(z.total_out);
  deflateEnd(&z);
  return out;
}

// A zip archive of arrays, each named NAME.npy in it.
inline std::string npz_bytes(const std::vector<NpyEntry>& entries, bool compressed = false) {
  std::string out, directory;
  const auto number = [](uint64_t value, size_t bytes) {
    std::string s(bytes, '\0');
    std::memcpy(s.data(), &value, bytes);
    return s;
  };
  for (const NpyEntry& e : entries) {
    const std::string plain = npy_bytes(e), name = e.name + ".npy";
    const std::string data = compressed ? deflated(plain) : plain;
    const auto sum =
        crc32(0, reinterpret_cast<const Bytef*>(plain.data()), static_cast<uInt>(plain.size()));
    const std::string about = number(20, 2) + number(0, 2) + number(compressed ? 8 : 0, 2) +
                              number(0, 4) + number(sum, 4) + number(data.size(), 4) +
                              number(plain.size(), 4) + number(name.size(), 2) + number(0, 2);
    directory += number(0x02014b50, 4) + number(20, 2) + about + number(0, 2) + number(0, 2) +
                 number(0, 2) + number(0, 4) + number(out.size(), 4) + name;
    out += number(0x04034b50, 4) + about + name + data;
  }
  const size_t at = out.size();
  return out + directory + number(0x06054b50, 4) + number(0, 4) + number(entries.size(), 2) +
         number(entries.size(), 2) + number(directory.size(), 4) + number(at, 4) + number(0, 2);
}

inline std::string float_bytes(std::span<const float> values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)};
}

}  // namespace saturate::model
