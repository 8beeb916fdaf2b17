// SPDX-License-Identifier: Apache-2.0
#include "model/npz_file.h"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <cstring>
#include <limits>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "model/zip_file.h"

namespace saturate::model {
namespace {

constexpr std::string_view kMagic = "\x93NUMPY";
constexpr std::array<std::pair<std::string_view, std::string_view>, 11> kTypes = {
    {{"<f4", "F32"},
     {"<f2", "F16"},
     {"<f8", "F64"},
     {"|i1", "I8"},
     {"|u1", "U8"},
     {"|b1", "BOOL"},
     {"<i2", "I16"},
     {"<i4", "I32"},
     {"<i8", "I64"},
     // cnpy, and so Marian, marks single bytes as little-endian too.
     {"<i1", "I8"},
     {"<u1", "U8"}}};

// The header of one array: a Python dictionary of three keys.
class Header {
 public:
  Header(std::string_view text, std::string_view name, const std::string& where)
      : text_(text), name_(name), where_(where) {}

  [[noreturn]] void refuse(const std::string& why) const {
    throw Error(Errc::invalid_argument, "npz",
                fmt::format("{}: array \"{:.200}\" {}; copy the file again, or save it again with "
                            "numpy.savez",
                            where_, name_, why));
  }

  TensorView read() {
    TensorView t{.name = std::string(name_), .dtype = {}, .shape = {}};
    bool has_shape = false, has_order = false;
    need('{');
    while (!take('}')) {
      const std::string_view key = quoted();
      need(':');
      if (key == "descr") {
        const std::string_view type = quoted();
        for (const auto& [theirs, ours] : kTypes)
          if (type == theirs) t.dtype = ours;
        if (t.dtype.empty())
          refuse(fmt::format("has elements of type {:.40}, little-endian numbers are read", type));
      } else if (key == "fortran_order") {
        columns_first_ = word() == "True";
        has_order = true;
      } else if (key == "shape") {
        t.shape = shape();
        has_shape = true;
      } else {
        refuse(fmt::format("has a header with the key \"{:.40}\"", key));
      }
      if (!take(',') && !at('}')) refuse("has a damaged header");
    }
    if (t.dtype.empty() || !has_shape || !has_order) refuse("has a header without type or shape");
    if (columns_first_ && t.shape.size() > 1) refuse("is stored by columns");
    return t;
  }

 private:
  void skip_blanks() {
    while (!text_.empty() && (text_.front() == ' ' || text_.front() == '\n'))
      text_.remove_prefix(1);
  }
  bool at(char c) {
    skip_blanks();
    return text_.starts_with(c);
  }
  bool take(char c) {
    const bool there = at(c);
    if (there) text_.remove_prefix(1);
    return there;
  }
  void need(char c) {
    if (!take(c)) refuse("has a damaged header");
  }
  std::string_view quoted() {
    const char quote = at('"') ? '"' : '\'';
    need(quote);
    const size_t end = text_.find(quote);
    if (end == std::string_view::npos) refuse("has a damaged header");
    const std::string_view found = text_.substr(0, end);
    text_.remove_prefix(end + 1);
    return found;
  }
  std::string_view word() {
    skip_blanks();
    const size_t end = std::min(text_.find_first_of(",} \n"), text_.size());
    const std::string_view found = text_.substr(0, end);
    text_.remove_prefix(end);
    if (found != "True" && found != "False") refuse("has a damaged header");
    return found;
  }
  std::vector<int64_t> shape() {
    std::vector<int64_t> sizes;
    need('(');
    while (!take(')')) {
      skip_blanks();
      int64_t size = -1;
      const char* const end = text_.data() + text_.size();
      const auto [stop, problem] = std::from_chars(text_.data(), end, size);
      if (problem != std::errc{} || size < 0) refuse("has a damaged shape");
      text_.remove_prefix(static_cast<size_t>(stop - text_.data()));
      sizes.push_back(size);
      if (!take(',') && !at(')')) refuse("has a damaged shape");
    }
    return sizes;
  }

  std::string_view text_;
  const std::string_view name_;
  const std::string& where_;
  bool columns_first_ = false;
};

TensorView parse_npy(std::string_view name, std::span<const std::byte> data,
                     const std::string& where) {
  const auto refuse = [&](const std::string& why) { Header({}, name, where).refuse(why); };
  const std::string_view bytes(reinterpret_cast<const char*>(data.data()), data.size());
  if (!bytes.starts_with(kMagic) || bytes.size() < kMagic.size() + 4)
    refuse("is no array of NumPy");
  const auto version = static_cast<uint8_t>(bytes[kMagic.size()]);
  if (version < 1 || version > 3) refuse(fmt::format("is of version {} of the format", version));
  const size_t count_bytes = version == 1 ? 2 : 4;
  const size_t begin = kMagic.size() + 2 + count_bytes;
  uint32_t count = 0;
  if (bytes.size() < begin) refuse("is cut off");
  std::memcpy(&count, bytes.data() + kMagic.size() + 2,
              count_bytes);  // little endian, as our hosts
  if (count > bytes.size() - begin) refuse("is cut off");
  TensorView t = Header(bytes.substr(begin, count), name, where).read();
  t.data = data.data() + begin + count;
  const size_t there = bytes.size() - begin - count;
  t.bytes = safetensors_element_bytes(t.dtype);
  for (const int64_t size : t.shape) {
    if (size > 0 && t.bytes > std::numeric_limits<size_t>::max() / static_cast<size_t>(size))
      refuse(fmt::format("of shape {} does not exist", shape_text(t.shape)));
    t.bytes *= static_cast<size_t>(size);
  }
  if (t.bytes != there)
    refuse(fmt::format("{} of {} needs {} bytes and has {}", shape_text(t.shape), t.dtype, t.bytes,
                       there));
  return t;
}

}  // namespace

std::vector<TensorView> parse_npz(std::span<const std::byte> file, const std::string& where,
                                  std::deque<std::vector<std::byte>>& unpacked) {
  std::vector<TensorView> out;
  for (const ZipEntry& entry : zip_entries(file, where, &unpacked)) {
    std::string_view name = entry.name;
    if (name.ends_with(".npy")) name.remove_suffix(4);
    out.push_back(parse_npy(name, entry.data, where));
  }
  return out;
}

}  // namespace saturate::model
