// SPDX-License-Identifier: Apache-2.0
#include "model/zip_file.h"

#include <fmt/format.h>
#include <zlib.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>

#include "base/error.h"

namespace saturate::model {
namespace {

constexpr uint32_t kLocal = 0x04034b50, kCentral = 0x02014b50, kEnd = 0x06054b50,
                   kEnd64 = 0x06064b50, kLocator64 = 0x07064b50;
constexpr uint16_t kDeflated = 8;
// What deflate makes of a byte at most: a match of 258 for two bits.
constexpr uint64_t kMostDeflated = 1032;
constexpr size_t kBlock = size_t{1} << 30;  // zlib counts in 32 bits
constexpr size_t kEndBytes = 22, kLocatorBytes = 20, kCentralBytes = 46, kLocalBytes = 30;

class Archive {
 public:
  Archive(std::span<const std::byte> file, const std::string& where,
          std::deque<std::vector<std::byte>>* unpacked)
      : file_(file), where_(where), unpacked_(unpacked) {}

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

  std::vector<ZipEntry> entries() {
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
  ZipEntry entry(uint64_t& at) {
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
    const bool deflated = method == kDeflated && unpacked_ != nullptr;
    if (!deflated && (method != 0 || packed != size))
      refuse(fmt::format("{:.200} in it is compressed, in a way that is not read here", name));
    if (number<uint32_t>(header) != kLocal)
      refuse(fmt::format("{:.200} is not where its directory says", name));
    const uint64_t data =
        header + kLocalBytes + number<uint16_t>(header + 26) + number<uint16_t>(header + 28);
    const uint32_t sum = number<uint32_t>(at + 16);
    at += kCentralBytes + name_bytes + extra_bytes + comment_bytes;
    return {name, deflated ? unpack(name, bytes(data, packed), size, sum) : bytes(data, size)};
  }

  std::span<const std::byte> unpack(std::string_view name, std::span<const std::byte> packed,
                                    uint64_t size, uint32_t sum) {
    const auto damaged = [&] { refuse(fmt::format("{:.200} in it is damaged", name)); };
    if (size > packed.size() * kMostDeflated) damaged();
    // Entries may share their bytes.
    if (size > file_.size() * kMostDeflated - unpacked_bytes_) refuse("its files overlap");
    unpacked_bytes_ += size;
    std::vector<std::byte>& out = unpacked_->emplace_back(size);
    z_stream z{};
    if (inflateInit2(&z, -MAX_WBITS) != Z_OK) refuse("zlib cannot start");
    const std::unique_ptr<z_stream, int (*)(z_stream*)> end(&z, inflateEnd);
    std::byte none{};  // zlib wants a place for no bytes too
    size_t given = 0, made = 0;
    int state = Z_OK;
    while (state == Z_OK) {
      const size_t in = std::min(packed.size() - given, kBlock),
                   room = std::min(out.size() - made, kBlock);
      z.next_in = reinterpret_cast<Bytef*>(const_cast<std::byte*>(packed.data() + given));
      z.avail_in = static_cast<uInt>(in);
      z.next_out = reinterpret_cast<Bytef*>(room > 0 ? out.data() + made : &none);
      z.avail_out = static_cast<uInt>(room);
      state = inflate(&z, Z_NO_FLUSH);
      given += in - z.avail_in;
      made += room - z.avail_out;
    }
    if (state != Z_STREAM_END || made != out.size() || given != packed.size()) damaged();
    uint32_t found = 0;
    for (size_t i = 0; i < out.size(); i += kBlock)
      found = static_cast<uint32_t>(crc32(found, reinterpret_cast<const Bytef*>(out.data() + i),
                                          static_cast<uInt>(std::min(out.size() - i, kBlock))));
    if (found != sum) damaged();
    return out;
  }

  const std::span<const std::byte> file_;
  const std::string& where_;
  std::deque<std::vector<std::byte>>* const unpacked_;
  uint64_t unpacked_bytes_ = 0;
};

}  // namespace

bool is_zip(std::span<const std::byte> file) noexcept {
  uint32_t first = 0;
  if (file.size() < sizeof first) return false;
  std::memcpy(&first, file.data(), sizeof first);
  return first == kLocal || first == kEnd;
}

std::vector<ZipEntry> zip_entries(std::span<const std::byte> file, const std::string& where,
                                  std::deque<std::vector<std::byte>>* unpacked) {
  return Archive(file, where, unpacked).entries();
}

}  // namespace saturate::model
