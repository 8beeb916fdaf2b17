// SPDX-License-Identifier: Apache-2.0
#include "model/zip_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "base/error.h"

namespace saturate::model {
namespace {

constexpr uint32_t kLocal = 0x04034b50, kCentral = 0x02014b50, kEnd = 0x06054b50,
                   kEnd64 = 0x06064b50, kLocator64 = 0x07064b50;
constexpr size_t kEndBytes = 22, kLocatorBytes = 20, kCentralBytes = 46, kLocalBytes = 30;

class Archive {
 public:
  Archive(std::span<const std::byte> file, const std::string& where) : file_(file), where_(where) {}

  [[noreturn]] void refuse(const std::string& why) const {
    throw Error(
        Errc::invalid_argument, "zip",
        fmt::format("{}: {}; copy the file again, or save it again as safetensors", where_, why));
  }

  std::span<const std::byte> bytes(uint64_t at, uint64_t count) const {
    if (at > file_.size() || count > file_.size() - at)
      refuse(fmt::format("it ends at byte {}, where its archive goes on to {}", file_.size(),
                         at + count));
    return file_.subspan(at, count);
  }
  template <class T>
  T number(uint64_t at) const {
    T value;
    std::memcpy(&value, bytes(at, sizeof value).data(),
                sizeof value);  // little endian, as our hosts
    return value;
  }
  std::string_view text(uint64_t at, uint64_t count) const {
    const auto b = bytes(at, count);
    return {reinterpret_cast<const char*>(b.data()), b.size()};
  }

  std::vector<ZipEntry> entries() const {
    const uint64_t end = find_end();
    uint64_t count = number<uint16_t>(end + 10), at = number<uint32_t>(end + 16);
    if (end >= kLocatorBytes && number<uint32_t>(end - kLocatorBytes) == kLocator64) {
      const auto end64 = number<uint64_t>(end - kLocatorBytes + 8);
      if (number<uint32_t>(end64) != kEnd64) refuse("its 64-bit directory is not where it says");
      count = number<uint64_t>(end64 + 32);
      at = number<uint64_t>(end64 + 48);
    }
    if (count > file_.size() / kCentralBytes) refuse("it names more files than it has room for");
    std::vector<ZipEntry> found;
    for (uint64_t i = 0; i < count; ++i) found.push_back(entry(at));
    return found;
  }

 private:
  uint64_t find_end() const {
    if (file_.size() >= kEndBytes) {
      const size_t last = file_.size() - kEndBytes;
      for (size_t back = 0; back <= std::min<size_t>(last, 65535); ++back)
        if (number<uint32_t>(last - back) == kEnd) return last - back;
    }
    refuse("it has no directory of a zip archive at its end");
  }

  // The entry whose directory record lies at `at`, which moves on to the next.
  ZipEntry entry(uint64_t& at) const {
    if (number<uint32_t>(at) != kCentral) refuse("a record of its directory is damaged");
    const auto flags = number<uint16_t>(at + 8), method = number<uint16_t>(at + 10);
    uint64_t packed = number<uint32_t>(at + 20), size = number<uint32_t>(at + 24),
             header = number<uint32_t>(at + 42);
    const uint64_t name_bytes = number<uint16_t>(at + 28), extra_bytes = number<uint16_t>(at + 30),
                   comment_bytes = number<uint16_t>(at + 32);
    const std::string_view name = text(at + kCentralBytes, name_bytes);
    // Sizes that do not fit in 32 bits stand in an extra field, those alone, in this order.
    const uint64_t extra = at + kCentralBytes + name_bytes;
    for (uint64_t e = extra; e + 4 <= extra + extra_bytes;) {
      const auto id = number<uint16_t>(e), length = number<uint16_t>(e + 2);
      uint64_t field = e + 4;
      if (id == 1) {
        for (uint64_t* value : {&size, &packed, &header}) {
          if (*value != UINT32_MAX || field + 8 > e + 4 + length) continue;
          *value = number<uint64_t>(field);
          field += 8;
        }
      }
      e += 4 + uint64_t{length};
    }
    if ((flags & 1) != 0) refuse(fmt::format("{:.200} in it is encrypted", name));
    if (method != 0 || packed != size)
      refuse(fmt::format(
          "{:.200} in it is compressed, which neither PyTorch nor NumPy's savez does", name));
    if (number<uint32_t>(header) != kLocal)
      refuse(fmt::format("{:.200} is not where its directory says", name));
    const uint64_t data =
        header + kLocalBytes + number<uint16_t>(header + 26) + number<uint16_t>(header + 28);
    at += kCentralBytes + name_bytes + extra_bytes + comment_bytes;
    return {name, bytes(data, size)};
  }

  const std::span<const std::byte> file_;
  const std::string& where_;
};

}  // namespace

bool is_zip(std::span<const std::byte> file) noexcept {
  uint32_t first = 0;
  if (file.size() < sizeof first) return false;
  std::memcpy(&first, file.data(), sizeof first);
  return first == kLocal || first == kEnd;
}

std::vector<ZipEntry> zip_entries(std::span<const std::byte> file, const std::string& where) {
  return Archive(file, where).entries();
}

}  // namespace saturate::model
